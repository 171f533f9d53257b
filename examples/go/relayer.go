// Relay the ICM messages of a route over gRPC: listen, have each message signed, deliver it. See ../README.md.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "example.com/relayer/warpseal/v1"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

var (
	warp, destinationID = common.HexToAddress("0x0200000000000000000000000000000000000005"), os.Getenv("DESTINATION_BLOCKCHAIN_ID")
	source, destination = must(ethclient.Dial(os.Getenv("SOURCE_RPC_URL"))), must(ethclient.Dial(os.Getenv("DESTINATION_RPC_URL")))
	account             = must(bind.NewKeyedTransactorWithChainID(must(crypto.HexToECDSA(os.Getenv("PRIVATE_KEY")[2:])), must(destination.ChainID(context.Background()))))
	channel             = must(grpc.NewClient(os.Getenv("DAEMON_ADDRESS"), grpc.WithTransportCredentials(insecure.NewCredentials())))
	daemon              = pb.NewWarpsealClient(channel)
	contract            = bind.NewBoundContract(common.HexToAddress(os.Getenv("MESSENGER")), abi.ABI{}, destination, destination, destination)
	sending             sync.Mutex // One by one, since each transaction needs the nonce behind the last.
)

// refused is an error after which trying again does not help.
type refused struct{ error }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// relay delivers the message of an event, and returns the hash of the transaction. The daemon has a timeout of its own.
func relay(event *pb.Event) (hash common.Hash, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var data struct{ IcmMessageId, TxHash common.Hash }
	must(0, json.Unmarshal([]byte(event.Data), &data))
	receipt, err := source.TransactionReceipt(ctx, data.TxHash)
	if err != nil {
		return hash, err
	}
	isSent := func(log *types.Log) bool {
		return log.Address == warp && log.Topics[1] == common.HexToHash(os.Getenv("MESSENGER")) && log.Topics[2] == common.HexToHash(event.MessageId)
	}
	place := slices.IndexFunc(receipt.Logs, isSent)
	if place < 0 {
		return hash, refused{errors.New("its transaction has no Warp message of the messenger")}
	}
	logged := receipt.Logs[place].Data
	// Headers, then the words nonce, sender, destination, recipient, gas limit, and the offsets of relayers and receipts.
	message := logged[32+32+42+34+32:]
	number := func(at uint64) uint64 { return new(big.Int).SetBytes(message[at:][:32]).Uint64() }
	relayers := message[number(5*32)+32:][:32*number(number(5*32))]
	from := common.LeftPadBytes(account.From[:], 32)
	if len(relayers) > 0 && !bytes.Contains(relayers, from) {
		return hash, refused{fmt.Errorf("only these relayers may deliver it: %x", relayers)}
	}
	isReceived := slices.Concat(crypto.Keccak256([]byte("messageReceived(bytes32)"))[:4], data.IcmMessageId[:])
	if result, err := contract.CallRaw(&bind.CallOpts{Context: ctx}, isReceived); err != nil {
		return hash, err
	} else if slices.Contains(result, 1) {
		return hash, refused{errors.New("it was delivered before")}
	}
	signed, err := daemon.AggregateSignatures(context.Background(), &pb.AggregateSignaturesRequest{Message: logged, DestinationBlockchainId: destinationID})
	if slices.Contains([]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded}, status.Code(err)) {
		return hash, err
	} else if err != nil {
		return hash, refused{err}
	}
	// A block verifies what is in the access list: the signed message, 0xff, and zeros up to a whole word.
	var words []common.Hash
	for chunk := range slices.Chunk(append(signed.SignedMessage, 0xff), 32) {
		words = append(words, common.Hash(common.RightPadBytes(chunk, 32)))
	}
	sending.Lock()
	defer sending.Unlock()
	options := *account
	options.Context, options.AccessList = ctx, types.AccessList{{Address: warp, StorageKeys: words}}
	// The formula of icm-services, for 1,024 signers. A node cannot estimate it, because calls verify no access list.
	options.GasLimit = 375_750 + 250*1024 + number(4*32) + 2500*number(number(6*32)) + uint64(1024*len(words)+35*len(message))
	receive := slices.Concat(crypto.Keccak256([]byte("receiveCrossChainMessage(uint32,address)"))[:4], make([]byte, 32), from)
	transaction, err := contract.RawTransact(&options, receive)
	if err != nil {
		return hash, err
	}
	receipt, err = bind.WaitMined(ctx, destination, transaction)
	if err == nil && receipt.Status != types.ReceiptStatusSuccessful {
		err = refused{fmt.Errorf("the transaction %v reverted", transaction.Hash())}
	}
	return transaction.Hash(), err
}

// work relays a message, and tries again until it is delivered or refused. open: the messages that are not.
func work(event *pb.Event, open *atomic.Int32) {
	defer open.Add(-1)
	for ; ; time.Sleep(2 * time.Second) {
		hash, err := relay(event)
		switch err.(type) {
		case nil:
			fmt.Println("delivered", event.MessageId, hash)
			return
		case refused:
			fmt.Println("refused", event.MessageId, err)
			return
		}
		fmt.Println("waiting", event.MessageId, err)
	}
}

func main() {
	file, open := os.Getenv("CURSOR_FILE"), new(atomic.Int32)
	stored, _ := os.ReadFile(file)
	request := &pb.ListenEventsRequest{Cursor: string(stored), Types: []string{"icm_sent"}, SourceBlockchainId: os.Getenv("SOURCE_BLOCKCHAIN_ID"), DestinationBlockchainId: destinationID}
	for ; ; time.Sleep(2 * time.Second) {
		stream, err := daemon.ListenEvents(context.Background(), request)
		for batch := (&pb.EventBatch{Cursor: request.Cursor}); err == nil; batch, err = stream.Recv() {
			for _, event := range batch.Events {
				open.Add(1)
				go work(event, open)
			}
			request.Cursor = batch.Cursor
			if open.Load() == 0 {
				must(0, errors.Join(os.WriteFile(file+".new", []byte(batch.Cursor), 0o600), os.Rename(file+".new", file)))
			}
		}
		if details := status.Convert(err).Details(); status.Code(err) == codes.OutOfRange {
			request.Cursor = details[0].(*errdetails.ErrorInfo).Metadata["oldest"]
		}
		fmt.Println("reconnecting:", err)
	}
}
