// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

import {ERC1967Proxy} from "@openzeppelin/contracts/proxy/ERC1967/ERC1967Proxy.sol";
import {ERC1967Utils} from "@openzeppelin/contracts/proxy/ERC1967/ERC1967Utils.sol";
import {ERC1155} from "@openzeppelin/contracts/token/ERC1155/ERC1155.sol";

/// Forwards all calls to an implementation that can be replaced: emits Upgraded.
contract Proxy is ERC1967Proxy {
    constructor(address implementation) ERC1967Proxy(implementation, "") {}

    function upgrade(address implementation) external {
        ERC1967Utils.upgradeToAndCall(implementation, "");
    }
}

contract FirstVersion {
    string public constant name = "First Version";
    string public constant symbol = "V1";
    uint8 public constant decimals = 8;
    uint256 public constant totalSupply = 7;
    mapping(address => uint256) public balanceOf;
}

contract SecondVersion is ERC1155 {
    string public constant name = "Second Version";
    string public constant symbol = "V2";

    constructor() ERC1155("") {}
}
