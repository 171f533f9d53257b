// SPDX-License-Identifier: MIT
pragma solidity ^0.8.24;

import {ERC721} from "@openzeppelin/contracts/token/ERC721/ERC721.sol";
import {ERC721Consecutive} from "@openzeppelin/contracts/token/ERC721/extensions/ERC721Consecutive.sol";
import {ERC1155} from "@openzeppelin/contracts/token/ERC1155/ERC1155.sol";

contract Collection is ERC721 {
    constructor(string memory name, string memory symbol) ERC721(name, symbol) {}

    function mint(address to, uint256 id) external {
        _mint(to, id);
    }

    function move(address from, address to, uint256 id) external {
        _transfer(from, to, id);
    }

    function burn(uint256 id) external {
        _burn(id);
    }
}

/// Mints a batch in its constructor: one ConsecutiveTransfer.
contract ConsecutiveCollection is ERC721Consecutive {
    constructor(address to, uint96 count) ERC721("Consecutive", "CON") {
        _mintConsecutive(to, count);
    }

    function move(address from, address to, uint256 id) external {
        _transfer(from, to, id);
    }

    function burn(uint256 id) external {
        _burn(id);
    }
}

contract Editions is ERC1155 {
    constructor() ERC1155("https://tokens.example/{id}.json") {}

    function mint(address to, uint256 id, uint256 amount) external {
        _mint(to, id, amount, "");
    }

    function mintBatch(address to, uint256[] calldata ids, uint256[] calldata amounts) external {
        _mintBatch(to, ids, amounts, "");
    }

    function move(address from, address to, uint256 id, uint256 amount) external {
        _safeTransferFrom(from, to, id, amount, "");
    }

    function moveBatch(address from, address to, uint256[] calldata ids, uint256[] calldata amounts) external {
        _safeBatchTransferFrom(from, to, ids, amounts, "");
    }

    function burn(address from, uint256 id, uint256 amount) external {
        _burn(from, id, amount);
    }
}

/// The Transfer of the first collections: nothing indexed, so one topic and 96 bytes.
abstract contract OneTopicTransfers {
    event Transfer(address from, address to, uint256 tokenId);

    mapping(uint256 => address) public owners;

    function mint(address to, uint256 id) external {
        require(owners[id] == address(0));
        owners[id] = to;
        emit Transfer(address(0), to, id);
    }

    function move(address from, address to, uint256 id) external {
        require(owners[id] == from);
        owners[id] = to;
        emit Transfer(from, to, id);
    }

    function burn(uint256 id) external {
        require(owners[id] != address(0));
        emit Transfer(owners[id], address(0), id);
        owners[id] = address(0);
    }

    function ownerOf(uint256 id) external view returns (address) {
        require(owners[id] != address(0), "no such token");
        return owners[id];
    }
}

/// Names itself by the interface of the ERC-721 draft.
contract FirstCollection is OneTopicTransfers {
    string public constant name = "First Collection";
    string public constant symbol = "FIRST";

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == 0x01ffc9a7 || id == 0x9a20483d;
    }
}

/// The same events, but no ERC-165: the number may as well be an amount.
contract OneTopicCoin is OneTopicTransfers {}
