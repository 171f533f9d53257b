// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

import {Counter} from "./Coins.sol";
import {Collection} from "./Collections.sol";

/// Creates a contract in its constructor, so that its creation has one below it.
contract Nest {
    Counter public inner = new Counter();
}

contract BrokenNest {
    Counter public inner = new Counter();

    constructor() {
        revert("created in vain");
    }
}

contract Factory {
    event Created(address made);

    function create() external {
        emit Created(address(new Counter()));
    }

    function create2(bytes32 salt) external {
        emit Created(address(new Collection{salt: salt}("Made", "MADE")));
    }

    function createNest() external {
        emit Created(address(new Nest()));
    }

    /// One creation stays, one is reverted with the creation below it.
    function createAndFail() external {
        emit Created(address(new Counter()));
        try new BrokenNest() {} catch {}
    }

    /// The creation is in a frame that is reverted although it did not fail itself.
    function createInRevertedCall() external {
        try this.createThenRevert() {} catch {}
    }

    function createThenRevert() external {
        new Counter();
        revert("undone");
    }
}

/// Two levels: the factory below is the creating contract.
contract Office {
    Factory public immutable factory = new Factory();

    function order() external {
        factory.create();
    }
}
