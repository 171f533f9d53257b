"""Relay the ICM messages of a route: listen, have each message signed, verify it, deliver it.

See ../README.md.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from os import environ
from pathlib import Path

import aiohttp
from eth_abi.abi import decode, encode
from eth_account import Account
from eth_hash.auto import keccak

import warpseal

SOURCE, DESTINATION = environ["SOURCE_BLOCKCHAIN_ID"], environ["DESTINATION_BLOCKCHAIN_ID"]
MESSENGER, WARP = environ["MESSENGER"], "0x0200000000000000000000000000000000000005"
ACCOUNT, CURSOR_FILE = Account.from_key(environ["PRIVATE_KEY"]), Path(environ["CURSOR_FILE"])
MESSAGE = "(uint256,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
RETRY_S, sending = 2.0, asyncio.Lock()


class NotYet(Exception):
    """Trying again after a while helps."""


class Refused(Exception):
    """Trying again does not help."""


async def listen(
    http: aiohttp.ClientSession, cursor: str
) -> AsyncIterator[tuple[str, dict | None]]:
    """Yield cursors, each with its event or None.

    When the connection breaks, the next one continues behind the last cursor.
    """
    query = {
        "types": "icm_sent",
        "sourceBlockchainId": SOURCE,
        "destinationBlockchainId": DESTINATION,
    }
    while True:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        try:
            async with http.get("/v1/events", params=query, headers=headers) as response:
                if response.status != 200:
                    error = await response.json()
                    if error["code"] == "cursor_expired":
                        cursor = error["detail"]["oldest"]
                    raise NotYet(error["message"])
                async for line in response.content:
                    field, _, value = line.decode().strip().partition(": ")
                    if field == "id":
                        cursor, event = value, None
                    elif field == "data":
                        event = json.loads(value)
                    elif not field:  # The empty line after each part.
                        yield cursor, event
        except (NotYet, aiohttp.ClientError, TimeoutError) as error:
            print(f"reconnecting: {error}", flush=True)
        await asyncio.sleep(RETRY_S)


async def call(http: aiohttp.ClientSession, url: str, method: str, params: list | dict):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await (await http.post(url, json=body)).json(content_type=None)
    if "error" in reply:
        raise NotYet(f"{method}: {reply['error']['message']}")
    return reply["result"]


async def sign(
    http: aiohttp.ClientSession, message: warpseal.UnsignedMessage
) -> warpseal.SignedMessage:
    """Return the message with the signatures that the destination demands now.

    They are verified here as well.
    """
    url = f"/v1/signatureAggregator/{environ['NETWORK']}/aggregateSignatures"
    body = {"message": message.raw.hex(), "destinationBlockchainId": DESTINATION}
    response = await http.post(url, json=body)
    reply, headers = await response.json(), response.headers
    if response.status != 201:
        text = f"{reply['code']}: {reply['message']}"
        raise NotYet(text) if "Retry-After" in headers else Refused(text)
    at = {
        "height": headers["X-Warpseal-P-Chain-Height"],
        "subnetID": headers["X-Warpseal-Signing-Subnet-Id"],
    }
    validators = await call(http, environ["NODE_URL"] + "/ext/bc/P", "platform.getValidatorsAt", at)
    entries = []
    for node_id, entry in validators.items():
        public_key = bytes.fromhex((entry["publicKey"] or "")[2:]) or None
        entries.append((warpseal.parse_node_id(node_id), public_key, int(entry["weight"])))
    signed = warpseal.SignedMessage.parse(bytes.fromhex(reply["signedMessage"]))
    members = warpseal.build_canonical_set(entries)
    quorum = int(headers["X-Warpseal-Quorum"].partition(";")[0])
    result = warpseal.verify(signed.encode(), members, quorum=quorum)
    if signed.unsigned != message or not result.meets_quorum:
        raise Refused(f"the daemon returned another message, or {result.refusal_text}")
    return signed


async def relay(http: aiohttp.ClientSession, event: dict) -> str:
    """Deliver the message of an event; return the hash of the transaction."""
    rpc, message_id = environ["DESTINATION_RPC_URL"], event["data"]["icmMessageId"]
    source_rpc, source_tx = environ["SOURCE_RPC_URL"], event["data"]["txHash"]
    receipt = await call(http, source_rpc, "eth_getTransactionReceipt", [source_tx])
    if not receipt:
        raise NotYet("the node of the source has no receipt of the transaction")
    topics = ["0x" + MESSENGER[2:].lower().rjust(64, "0"), event["messageId"]]
    sent = [
        log for log in receipt["logs"] if log["address"] == WARP and log["topics"][1:] == topics
    ]
    if not sent:
        raise Refused("the transaction has no Warp message of the messenger")
    (raw_message,) = decode(["bytes"], bytes.fromhex(sent[0]["data"][2:]))
    message = warpseal.UnsignedMessage.parse(raw_message)
    payload = warpseal.AddressedCall.parse(message.payload).payload
    (fields,) = decode([MESSAGE], payload)
    _nonce, _sender, _destination, _recipient, gas_limit, relayers, receipts, _body = fields
    if relayers and ACCOUNT.address.lower() not in relayers:
        raise Refused(f"only these relayers may deliver it: {', '.join(relayers)}")
    selector = keccak(b"messageReceived(bytes32)")[:4]
    query = {"to": MESSENGER, "data": f"0x{selector.hex()}{message_id[2:]}"}
    if int(await call(http, rpc, "eth_call", [query, "latest"]), 16):
        raise Refused("it was delivered before")
    signed = await sign(http, message)
    # A block verifies what is in the access list: the signed message, 0xff, and zeros up to a whole
    # word.
    predicate = signed.encode() + b"\xff"
    predicate += bytes(-len(predicate) % 32)
    words = ["0x" + predicate[at : at + 32].hex() for at in range(0, len(predicate), 32)]
    # The formula of icm-services. A node cannot estimate it, because calls verify no access list.
    gas = 375_750 + gas_limit + 1_024 * len(words) + 250 * len(signed.signer_indices)
    gas += 35 * len(payload) + 2_500 * len(receipts)
    selector = keccak(b"receiveCrossChainMessage(uint32,address)")[:4]
    data = selector + encode(["uint32", "address"], [0, ACCOUNT.address])
    access_list = [{"address": WARP, "storageKeys": words}]
    transaction = {
        "to": bytes.fromhex(MESSENGER[2:]),
        "gas": gas,
        "data": data,
        "accessList": access_list,
    }
    async with sending:  # One by one, since each needs the nonce behind the last.
        price = int(await call(http, rpc, "eth_gasPrice", []), 16)
        transaction |= {"maxFeePerGas": 2 * price, "maxPriorityFeePerGas": price // 10}
        sender = [ACCOUNT.address, "latest"]
        transaction["nonce"] = await call(http, rpc, "eth_getTransactionCount", sender)
        transaction["chainId"] = await call(http, rpc, "eth_chainId", [])
        raw = ACCOUNT.sign_transaction(transaction).raw_transaction
        tx_hash = await call(http, rpc, "eth_sendRawTransaction", ["0x" + raw.hex()])
        async with asyncio.timeout(60):
            while not (receipt := await call(http, rpc, "eth_getTransactionReceipt", [tx_hash])):
                await asyncio.sleep(0.5)
    if receipt["status"] != "0x1":
        raise Refused(f"the transaction {tx_hash} reverted")
    return str(tx_hash)


async def work(http: aiohttp.ClientSession, event: dict) -> None:
    """Relay a message; try again until it is delivered or refused."""
    while True:
        try:
            return print("delivered", event["messageId"], await relay(http, event), flush=True)
        except Refused as error:
            return print("refused", event["messageId"], error, flush=True)
        except (NotYet, aiohttp.ClientError, TimeoutError) as error:
            print("waiting", event["messageId"], error, flush=True)
        await asyncio.sleep(RETRY_S)


async def main() -> None:
    """Relay until the process ends.

    The file has the cursor before the oldest message that is not done.
    """
    cursor = CURSOR_FILE.read_text() if CURSOR_FILE.exists() else ""
    before: dict[asyncio.Task, str] = {}
    # The daemon sends a cursor every 15 seconds.
    silence = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with (
        aiohttp.ClientSession(environ["DAEMON_URL"], timeout=silence) as http,
        asyncio.TaskGroup() as tasks,
    ):
        async for next_cursor, event in listen(http, cursor):
            if event and "messageId" in event:
                before[tasks.create_task(work(http, event))] = cursor
            cursor = next_cursor
            before = {task: start for task, start in before.items() if not task.done()}
            CURSOR_FILE.with_suffix(".new").write_text(next(iter(before.values()), cursor))
            CURSOR_FILE.with_suffix(".new").replace(CURSOR_FILE)


asyncio.run(main())
