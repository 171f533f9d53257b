// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

/// Stands in for the Warp precompile: it believes what `stage` was given. The blockchain id is in slot 0.
contract Warp {
    struct Message {
        bytes32 sourceChainID;
        address originSenderAddress;
        bytes payload;
    }

    bytes32 public getBlockchainID;
    Message private staged;

    event SendWarpMessage(address indexed sender, bytes32 indexed messageID, bytes message);

    function stage(bytes32 source, address sender, bytes calldata payload) external {
        staged = Message(source, sender, payload);
    }

    function getVerifiedWarpMessage(uint32) external view returns (Message memory message, bool valid) {
        return (staged, true);
    }

    function sendWarpMessage(bytes calldata payload) external returns (bytes32 messageID) {
        bytes memory call = abi.encodePacked(
            hex"000000000001", uint32(20), msg.sender, uint32(payload.length), payload
        );
        bytes memory message = abi.encodePacked(
            hex"0000", uint32(12345), getBlockchainID, uint32(call.length), call
        );
        messageID = sha256(message);
        emit SendWarpMessage(msg.sender, messageID, message);
    }
}

/// Receives messages of ICM, unless it was told to fail.
contract Receiver {
    bool public fails;
    uint256 public received;

    function setFails(bool value) external {
        fails = value;
    }

    function receiveTeleporterMessage(bytes32, address, bytes calldata) external {
        require(!fails, "not now");
        ++received;
    }
}

/// Logs the events of a messenger, and sends its payload by the precompile.
contract FalseMessenger {
    function log(bytes32[] calldata topics, bytes calldata data) external {
        if (topics.length == 2) {
            bytes memory copy = data;
            assembly {
                log2(add(copy, 32), mload(copy), calldataload(topics.offset), calldataload(add(topics.offset, 32)))
            }
        } else {
            bytes memory copy = data;
            assembly {
                log3(
                    add(copy, 32),
                    mload(copy),
                    calldataload(topics.offset),
                    calldataload(add(topics.offset, 32)),
                    calldataload(add(topics.offset, 64))
                )
            }
        }
    }

    function sendWarp(bytes calldata payload) external {
        Warp(0x0200000000000000000000000000000000000005).sendWarpMessage(payload);
    }
}

/// Sends as the messenger of version 2 does: by an adapter, with its own address in the message. It remembers a failed
/// message without that address, as the contract of August 2026 does, so that no message has the hash that it expects.
contract MessengerV2 {
    struct Receipt {
        uint256 nonce;
        address relayer;
    }

    struct Message {
        uint256 nonce;
        address sender;
        address origin;
        bytes32 destination;
        address recipient;
        uint256 gasLimit;
        address[] relayers;
        Receipt[] receipts;
        bytes body;
    }

    struct Fee {
        address asset;
        uint256 amount;
    }

    FalseMessenger private adapter = new FalseMessenger();
    uint256 private nonce;
    mapping(bytes32 => bytes32) public getMessageHash;
    mapping(bytes32 => Fee) public getFeeInfo;
    mapping(bytes32 => bytes32) private failedHashes;

    event SendCrossChainMessage(bytes32 indexed messageID, bytes32 indexed destination, Message message, Fee fee);

    function send(bytes32 destination, address recipient, bytes calldata body) external {
        Message memory message = Message(
            ++nonce, msg.sender, address(this), destination, recipient, 200_000, new address[](1), new Receipt[](1), body
        );
        bytes32 source = Warp(0x0200000000000000000000000000000000000005).getBlockchainID();
        bytes32 id = keccak256(abi.encode(address(this), source, destination, message.nonce));
        getMessageHash[id] = keccak256(abi.encode(message));
        emit SendCrossChainMessage(id, destination, message, Fee(address(0), 0));
        adapter.sendWarp(abi.encode(message));
    }

    function fail(bytes32 source, Message calldata message) external {
        failedHashes[idOf(source, message)] = keccak256(
            abi.encode(
                message.nonce,
                message.sender,
                message.destination,
                message.recipient,
                message.gasLimit,
                message.relayers,
                message.receipts,
                message.body
            )
        );
    }

    function retryMessageExecution(bytes32 source, Message calldata message) external view {
        bytes32 failedHash = failedHashes[idOf(source, message)];
        require(failedHash != bytes32(0), "TeleporterMessenger: message not found");
        require(keccak256(abi.encode(message)) == failedHash, "TeleporterMessenger: invalid message hash");
    }

    function idOf(bytes32 source, Message calldata message) private view returns (bytes32) {
        return keccak256(abi.encode(address(this), source, message.destination, message.nonce));
    }
}
