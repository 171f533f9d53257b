// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

contract Coin is ERC20 {
    constructor() ERC20("Plain Coin", "COIN") {
        _mint(msg.sender, 1_000_000);
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }
}

/// Name and symbol from the time before they were strings.
contract Bytes32Coin {
    bytes32 public constant name = "Maker of Old";
    bytes32 public constant symbol = "MKO";
    uint8 public constant decimals = 18;
    uint256 public constant totalSupply = 5;
    mapping(address => uint256) public balanceOf;
}

/// A name of 300 bytes, of which 255 fit, and the 255th is amid a character.
contract LongNameCoin {
    uint8 public constant decimals = 0;
    uint256 public constant totalSupply = 5;
    mapping(address => uint256) public balanceOf;

    function name() external pure returns (string memory text) {
        for (uint256 i = 0; i < 150; ++i) text = string.concat(text, unicode"é");
    }

    function symbol() external pure returns (string memory) {
        return "nul\x00inside";
    }
}

/// Counts, and is no token.
contract Counter {
    uint256 public count;

    function increase() external {
        ++count;
    }
}
