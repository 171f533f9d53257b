// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

/// Returns 1 MiB and one word for every call.
contract Bomb {
    fallback() external {
        assembly {
            return(0, add(0x100000, 32))
        }
    }
}

contract Burner {
    fallback() external {
        while (true) {}
    }
}

/// Reverts with what a node says that has no state: the reason is the contract's own text.
contract Mimic {
    fallback() external {
        revert("missing trie node 00 (path ) state 00 is not available");
    }
}

/// Says yes to all interfaces, also to the one that must be denied.
contract YesSayer {
    fallback() external {
        assembly {
            mstore(0, 1)
            return(0, 32)
        }
    }
}

/// Points far beyond its answer, with a length that is as false.
contract BadOffsets {
    fallback() external {
        assembly {
            mstore(0, not(0))
            mstore(32, not(31))
            return(0, 64)
        }
    }
}

/// Answers with as many bytes as no type has.
contract Stutterer {
    fallback() external {
        assembly {
            mstore(0, 1)
            return(0, 31)
        }
    }
}

/// Logs with the topics of NFT events, and what no such event holds.
contract LogBomb {
    bytes32 private constant TRANSFER = keccak256("Transfer(address,address,uint256)");
    bytes32 private constant CONSECUTIVE = keccak256("ConsecutiveTransfer(uint256,uint256,address,address)");
    bytes32 private constant SINGLE = keccak256("TransferSingle(address,address,address,uint256,uint256)");
    bytes32 private constant BATCH = keccak256("TransferBatch(address,address,address,uint256[],uint256[])");

    /// Emits eight logs, none of which is a transfer.
    function logShapes() external {
        emitZeros(TRANSFER, 95);
        emitZeros(TRANSFER, 128);
        emitZeros(BATCH, 0);
        emitData(SINGLE, hex"");
        emitData(BATCH, hex"");
        emitData(BATCH, abi.encode(type(uint256).max, type(uint256).max));
        emitData(BATCH, abi.encode(new uint256[](2), new uint256[](1)));
        emitData(CONSECUTIVE, abi.encode(uint256(10_001)));
    }

    /// Emits one batch of many entries.
    function logBatch(uint256 count) external {
        emitData(BATCH, abi.encode(new uint256[](count), new uint256[](count)));
    }

    function emitZeros(bytes32 topic, uint256 size) private {
        assembly {
            log1(0, size, topic)
        }
    }

    function emitData(bytes32 topic, bytes memory data) private {
        assembly {
            log4(add(data, 32), mload(data), topic, 1, 2, 3)
        }
    }
}

/// Moves editions that were never minted.
contract FalseEditions {
    event TransferSingle(address indexed operator, address indexed from, address indexed to, uint256 id, uint256 value);

    function move(address from, address to, uint256 id, uint256 amount) external {
        emit TransferSingle(msg.sender, from, to, id, amount);
    }

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == 0x01ffc9a7 || id == 0xd9b67a26;
    }
}
