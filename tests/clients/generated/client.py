"""Sign, page and read an error with the Python client that openapi-python-client generates.

Arguments: URL of a daemon that signs, an unsigned message in hex, URL of a daemon with an index.
Prints one JSON object.
"""

import json
import sys

from warpseal_client import Client
from warpseal_client.api.primary_network import (
    list_latest_primary_network_transactions as transactions,
)
from warpseal_client.api.signature_aggregator import aggregate_signatures
from warpseal_client.models import (
    AggregateSignaturesRequest,
    Error,
    PChainTransactions,
    SignedMessage,
)
from warpseal_client.types import UNSET

signer_url, message, history_url = sys.argv[1:]
signer, history = Client(base_url=signer_url), Client(base_url=history_url)

signed = aggregate_signatures.sync(
    "fuji", client=signer, body=AggregateSignaturesRequest(message=message)
)
assert isinstance(signed, SignedMessage)

hashes, page_token = [], UNSET
while True:
    page = transactions.sync("fuji", "p-chain", client=history, page_size=3, page_token=page_token)
    assert isinstance(page, PChainTransactions)
    hashes += [transaction.tx_hash for transaction in page.transactions]
    page_token = page.next_page_token
    if not page_token:
        break

refusal = aggregate_signatures.sync(
    "fuji", client=signer, body=AggregateSignaturesRequest(message="00")
)
assert isinstance(refusal, Error)

error = {"status": refusal.status_code, "code": refusal.code}
json.dump(
    {"signedMessage": signed.signed_message, "transactions": hashes, "error": error}, sys.stdout
)
