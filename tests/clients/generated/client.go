// Sign, page and read an error with the client that oapi-codegen generates.
// Arguments: URL of a daemon that signs, an unsigned message in hex, URL of a daemon with an index.
// Prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"example.com/client/warpseal"
)

type refusal struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
}

type outcome struct {
	SignedMessage string   `json:"signedMessage"`
	Transactions  []string `json:"transactions"`
	Error         refusal  `json:"error"`
}

func connect(url string) *warpseal.ClientWithResponses {
	client, err := warpseal.NewClientWithResponses(url)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func aggregate(client *warpseal.ClientWithResponses, message string) *warpseal.AggregateSignaturesResponse {
	body := warpseal.AggregateSignaturesRequest{Message: &message}
	response, err := client.AggregateSignaturesWithResponse(context.Background(), "fuji", body)
	if err != nil {
		log.Fatal(err)
	}
	return response
}

func list(client *warpseal.ClientWithResponses) (hashes []string) {
	size := 3
	parameters := warpseal.ListLatestPrimaryNetworkTransactionsParams{PageSize: &size}
	for {
		response, err := client.ListLatestPrimaryNetworkTransactionsWithResponse(
			context.Background(), "fuji", "p-chain", &parameters)
		if err != nil {
			log.Fatal(err)
		}
		page, err := response.JSON200.AsPChainTransactions()
		if err != nil {
			log.Fatal(err)
		}
		for _, transaction := range page.Transactions {
			hashes = append(hashes, transaction.TxHash)
		}
		if page.NextPageToken == nil {
			return hashes
		}
		parameters.PageToken = page.NextPageToken
	}
}

func main() {
	signer := connect(os.Args[1])
	refused := aggregate(signer, "00").JSON400
	result := outcome{
		SignedMessage: aggregate(signer, os.Args[2]).JSON201.SignedMessage,
		Transactions:  list(connect(os.Args[3])),
		Error:         refusal{refused.StatusCode, refused.Code},
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}
