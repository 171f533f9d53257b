"""`warpseal doctor` and the nodes of indexed EVM chains: what each lacks is a warning that says
what is lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.indexer.evm_chains import ServedChain, recorded_chain, transfer_blocks
from tests.indexer.evm_node import MISSING_STATE, EvmReplayNode, serving_evm
from tests.integration.daemon import run_network, write_config_file
from tests.integration.process import run_command
from tests.node.recorded_node import refusing_uri
from warpseal.warp.ids import id_text
from warpseal_simnet.plan import L1Plan, Plan


def entry(chain: ServedChain, *urls: str, **index: Any) -> dict[str, Any]:
    return {
        "blockchain-id": id_text(chain.blockchain_id),
        "rpc": list(urls),
        "index": index or True,
    }


async def test_doctor_says_what_the_nodes_of_evm_chains_lack(tmp_path: Path) -> None:
    recorded, made_up = recorded_chain("localnet", "l1-0"), transfer_blocks(30, has_roots=False)
    last = recorded.tip - 2
    whole, pruned = (
        EvmReplayNode(recorded, first_trace=0),
        EvmReplayNode(recorded, first_trace=last, first_receipts=last),
    )
    usual = EvmReplayNode(recorded, first_trace=last, has_genesis_state=True)
    refusal = (-32001, "the method eth_getBlockReceipts is not in the list of this key")
    untraced, old = (
        EvmReplayNode(made_up),
        EvmReplayNode(made_up, replies={"eth_getBlockReceipts": refusal}),
    )
    closed = refusing_uri()
    plan = Plan(validators=4, l1s=(L1Plan(validators=2),))
    async with run_network(plan) as network, serving_evm(whole, pruned, untraced, old, usual):
        urls = (
            whole.url,
            pruned.url,
            untraced.url,
            f"{network.node_uri}/none",
            f"{closed}/s3cr3t",
            usual.url,
        )
        chains = [entry(recorded, *urls), entry(made_up, untraced.url, old.url, traces="off")]
        upgrades = tmp_path / "upgrade.json"
        upgrades.write_text('{"precompileUpgrades":[{"nope":{}}]}')
        chains[1]["upgrade-file"] = str(upgrades)
        keys = {"evm-chains": chains, "index-l1s-at": closed}
        config = write_config_file(network, tmp_path, keys)
        command = await run_command("doctor", "--config", config, "--wait", "20", "--json")
    assert command.code == 0, command.stderr
    assert "s3cr3t" not in command.stdout
    document = json.loads(command.stdout)
    findings = {item["finding"]: item["grade"] for item in document["findings"]}
    advice = " ".join(item.get("advice", "") for item in document["findings"])
    of_recorded, of_made_up = (
        f"evm-chains {id_text(chain.blockchain_id)} rpc" for chain in (recorded, made_up)
    )
    responses = f"answers: EVM chain id {recorded.evm_chain_id}, block {recorded.tip}"
    other_chain = (
        f"is of another chain: chain id {made_up.evm_chain_id}, block 0 {made_up.hashes[0]}"
    )
    middle = (1 + recorded.tip) // 2
    made_up_responses = f"answers: EVM chain id {made_up.evm_chain_id}, block {made_up.tip}"
    pruned_node = f"{of_recorded}[1] {pruned.url}"
    no_receipts = "does not have the receipts of block 1, the first that is indexed"
    no_trace = f"(-32000: {MISSING_STATE[1]})"
    unknown_key = "the upgrade file cannot be read: unknown precompile config: nope"
    expected = {
        f"{of_recorded}[0] {whole.url} {responses}": "good",
        f"{pruned_node} {responses}": "good",
        f"{pruned_node} {no_receipts}": "warning",
        f"{pruned_node} does not trace block 1 {no_trace}": "warning",
        f"{of_recorded}[2] {untraced.url} {other_chain}": "warning",
        f"{of_recorded}[3] {network.node_uri}: HTTP 404, text": "warning",
        f"{of_recorded}[4] {closed}: unreachable (connection refused)": "warning",
        f"{of_recorded}[5] {usual.url} {responses}": "good",
        f"{of_recorded}[5] {usual.url} does not trace block {middle} {no_trace}": "warning",
        f"{of_made_up}[0] {untraced.url} {made_up_responses}": "good",
        f"{of_made_up}[1] {old.url} {made_up_responses}": "good",
        f"{of_made_up}[1] {old.url} does not have eth_getBlockReceipts": "warning",
        f"evm-chains[1].upgrade-file {upgrades}: {unknown_key}": "warning",
        f"index-l1s-at {closed} serves no EVM chain of tracked-subnet-ids": "warning",
    }
    assert {
        what: grade
        for what, grade in findings.items()
        if what.startswith(("evm-chains", "index-l1s-at"))
    } == expected
    assert [grade for what, grade in findings.items() if what.startswith(f"{tmp_path}/data/")] == [
        "good"
    ]
    assert "/ext/bc/<blockchain id>/rpc" in advice
    assert document["canSign"]


async def test_doctor_says_what_is_lost_without_traces(tmp_path: Path) -> None:
    chain = transfer_blocks(3, has_roots=False)
    async with (
        run_network(Plan(validators=2)) as network,
        serving_evm(EvmReplayNode(chain)) as (node,),
    ):
        config = write_config_file(network, tmp_path, {"evm-chains": [entry(chain, node.url)]})
        command = await run_command("doctor", "--config", config, "--wait", "20")
    assert command.code == 0, command.stderr
    warning = command.stdout.partition("WARN")[2]
    assert f"rpc[0] {node.url} has no debug_traceBlockByNumber (-32601: " in warning
    assert "internal=none; add debug-tracer to eth-apis" in warning
