"""Training steps: repeated, compared in every bit, and never excused."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from test_detectors import caught, run_with
from torch.utils._python_dispatch import TorchDispatchMode

from nodeproof import results
from nodeproof.acceptance import test_training_step as training
from nodeproof.checks import Device, DeviceKind, Profile, spec_of
from nodeproof.kernels.bits import unsigned
from nodeproof.kernels.digest import Digest, as_words, flip
from nodeproof.kernels.golden import SHIPPED, entry
from nodeproof.kernels.golden import answer as recorded_answer
from nodeproof.kernels.training_step import Replay, replay
from nodeproof.kernels.transformer import RECIPES, AdamW, Model, initial, tokens
from nodeproof.model import Cause, Measurement, Outcome
from nodeproof.plugin.judging import judge
from nodeproof.worker import Context

INTRUDER = Path(__file__).parent / "intruder" / "sitecustomize.py"
CHECK = "device.training.step"
PRODUCTS = ("aten.mm.", "aten.bmm.", "aten.addmm.", "aten.baddbmm.", "aten.matmul.", "aten.linear.")

# Products forward, and twice as many backward: six in each block, and the head.
PER_RUN = RECIPES["cpu"].steps * 3 * (RECIPES["cpu"].layers * 6 + 1)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def step(context):
    """The work function, in this process."""

    def run(device_id="cpu0", seed=7, peers=1, **args):
        known = {**context(device_id=device_id, seed=seed, peers=peers), "host_root": Path("/")}
        return json.loads(json.dumps(replay(Context(**known), **args), allow_nan=False))

    return run


class Outside(TorchDispatchMode):
    """Flips a bit in products, below all of torch's Python names; `at` numbers them, None is all."""

    def __init__(self, at=(), bit=0, element=11, after=0):
        super().__init__()
        self.at, self.bit, self.element, self.after = at, bit, element, after
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if str(func).startswith(PRODUCTS):
            number, self.count = self.count, self.count + 1
            if self.at is None or number in self.at:
                flip(out, self.element % out.numel(), self.bit)
        return out


# --- nothing absent is a pass -----------------------------------------------------------------


def judged(result, peers=(), kind=DeviceKind.CPU):
    taken = []

    def measure(name, value, **bounds):
        taken.append(Measurement(name=name, value=float(value), **bounds))

    raised = None
    try:
        training.test_training_step(
            device=Device(kind=kind, id="own", label="own"),
            result=result,
            peers=list(peers),
            measure=measure,
        )
    except Exception as error:  # noqa: BLE001  as the plugin does
        raised = error
    return judge(spec_of(training.test_training_step), taken, raised), taken


BEGUN, SEEN = training._BEGUN[DeviceKind.CPU], training._SEEN[DeviceKind.CPU]


def told_in(digest):
    more = [f"0 backward {number} {'2' * 16}" for number in range(SEEN - 2)]
    return [f"0 forward embedding {'1' * 16}", f"0 forward block0 mlp {digest}", *more]


ANSWERS = {training._summary(told_in(of * 16)): told_in(of * 16) for of in "abc"}
SAME, OTHER, THIRD = ANSWERS


def answer(digest=SAME, **more):
    key = {"model": "M", "torch": "1", "cuda": None}
    return {
        "diverged": 0,
        "found": [],
        "planted": [],
        "runs": 2,
        "compared": BEGUN + SEEN,
        "unfinite": 0,
        "trail": ANSWERS.get(digest, ANSWERS[SAME]),
        "digest": digest,
        "golden": "",
        "key": key,
        "recipes": 1,
        "asks": {"recipes": 1, "key": key, "diverged": 0},
        "devices": 1,
        "loaded_s": 1.0,
        "steps_per_s": 1.0,
        **more,
    }


def peer(number, digest=SAME, **more):
    name = f"gpu{number}"
    return Device(kind=DeviceKind.GPU, id=name, label=name), answer(digest, **more)


NEEDED = {
    *("diverged", "found", "runs", "compared", "unfinite", "digest", "golden", "asks", "devices"),
    *("trail", "steps_per_s"),
}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_an_answer_that_lacks_what_is_judged_is_no_pass(name):
    told = answer()
    del told[name]
    # Another device makes the answer needed in full.
    judgement, _ = judged(told, [peer(1)])
    assert judgement.outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"diverged": 1}, "runs that differ"),
        ({"runs": 1}, "repeats"),
        ({"runs": 0}, "repeats"),
        ({"compared": 0}, "digests compared"),
        ({"compared": BEGUN + SEEN - 1}, "digests compared"),
        ({"runs": 3}, "digests compared"),  # of which one was compared with nothing
        (
            {"trail": told_in("a")[1:], "digest": training._summary(told_in("a")[1:])},
            "digests of a run",
        ),
        ({"digest": "00"}, "answer unlike its digests"),
        ({"unfinite": 1}, "losses that are no number"),
    ],
)
def test_each_limit_is_held(changes, broken):
    judgement, _ = judged(answer(**changes))
    assert judgement.outcome is Outcome.FAIL
    assert judgement.broken == {broken}
    left_out = broken == "digests of a run"  # no hardware leaves work out
    assert judgement.cause is (Cause.ENVIRONMENT if left_out else Cause.HARDWARE)


# --- witnesses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "outcome", "cause"),
    [
        (SAME, [SAME], Outcome.PASS, None),
        (SAME, [SAME] * 7, Outcome.PASS, None),
        (SAME, [OTHER], Outcome.FAIL, Cause.ENVIRONMENT),  # two that differ: nobody is blamed
        (OTHER, [SAME, SAME], Outcome.FAIL, Cause.HARDWARE),
        (SAME, [SAME, OTHER], Outcome.PASS, None),  # the other one is to blame
        (SAME, [OTHER, THIRD], Outcome.FAIL, Cause.ENVIRONMENT),
        (SAME, [SAME, OTHER, OTHER], Outcome.FAIL, Cause.ENVIRONMENT),
        (OTHER, [SAME] * 7, Outcome.FAIL, Cause.HARDWARE),
        # No two faults give the same bits: something else is not alike.
        (OTHER, [OTHER, *[SAME] * 6], Outcome.FAIL, Cause.ENVIRONMENT),
    ],
)
def test_devices_are_held_against_their_like(own, others, outcome, cause):
    count = len(others) + 1
    told = answer(own, devices=count)
    judgement, _ = judged(told, [peer(i, d, devices=count) for i, d in enumerate(others)])
    assert (judgement.outcome, judgement.cause) == (outcome, cause)
    if outcome is Outcome.FAIL:
        assert judgement.broken == {"witnesses against"}
        assert "step 0, forward, block0 mlp" in judgement.summary


def test_only_what_has_to_give_the_same_bits_is_a_witness():
    others = [
        peer(1, OTHER, key={"model": "N", "torch": "1", "cuda": None}),
        peer(2, OTHER, diverged=1),  # does not agree with itself
    ]
    judgement, taken = judged(answer(devices=3), others)
    assert judgement.outcome is Outcome.PASS
    assert {m.name: m.value for m in taken}["witnesses"] == 0


def test_a_device_alone_says_that_it_has_no_witness_and_holds_nothing_against_one():
    judgement, taken = judged(answer())
    (witnesses,) = [m for m in taken if m.name == "witnesses"]
    assert (witnesses.value, witnesses.bounded) == (0, False)
    assert "witnesses against" not in judgement.bounded
    assert judgement.outcome is Outcome.PASS


def test_among_several_devices_the_limit_is_there_even_if_nobody_answered():
    # So that the self-test has to break it, which it can't without another device's answer.
    judgement, _ = judged(answer(devices=2))
    assert "witnesses against" in judgement.bounded
    dissent = spec_of(training.test_training_step).plants[-1].alter
    assert judged(dissent(answer(devices=2)))[0].outcome is Outcome.PASS
    assert judged(dissent(answer(devices=2)), [peer(1)])[0].broken == {"witnesses against"}
    assert dissent(answer(devices=1)) is None


@pytest.mark.parametrize(
    ("recorded", "others", "outcome", "cause"),
    [
        (SAME, [], Outcome.PASS, None),
        (OTHER, [], Outcome.FAIL, Cause.HARDWARE),
        (SAME, [OTHER], Outcome.PASS, None),  # the record says who is right
        (OTHER, [OTHER], Outcome.FAIL, Cause.HARDWARE),
        (OTHER, [SAME], Outcome.FAIL, Cause.CONFIG),  # what two show alike is no fault of one
    ],
)
def test_a_recorded_answer_decides(recorded, others, outcome, cause):
    count = len(others) + 1
    told = answer(golden=recorded, devices=count)
    judgement, _ = judged(told, [peer(i, d, devices=count) for i, d in enumerate(others)])
    assert (judgement.outcome, judgement.cause) == (outcome, cause)


# --- recorded answers --------------------------------------------------------------------------


def test_an_answer_is_recorded_for_exactly_its_key(step, tmp_path):
    result = step()
    file = tmp_path / "golden.toml"
    file.write_text(entry(result))
    assert recorded_answer(file, result["key"]) == result["digest"]
    for name, value in result["key"].items():
        assert recorded_answer(file, {**result["key"], name: f"{value}x"}) == ""
    assert recorded_answer(file, {**result["key"], "more": 1}) == ""


def test_two_answers_for_one_key_are_refused(step, tmp_path):
    result = step()
    file = tmp_path / "golden.toml"
    file.write_text("\n".join([entry(result)] * 2))
    with pytest.raises(ValueError, match="2 answers for one key"):
        recorded_answer(file, result["key"])


def test_the_shipped_records_can_be_read_and_say_which_recipe_they_are_of():
    for record in tomllib.loads(SHIPPED.read_text()).get("golden", []):
        assert len(bytes.fromhex(record["digest"])) == 8
        assert {"torch", "model", "version"} <= set(record["key"])
        recorded_answer(SHIPPED, record["key"])


# --- repeats -----------------------------------------------------------------------------------


def test_runs_of_any_seed_and_process_are_alike(step):
    one, two = step(seed=1), step(seed=2, device_id="cpu1", seconds=0.3)
    assert (one["diverged"], one["found"], one["planted"], one["unfinite"]) == (0, [], [], 0)
    assert one["digest"] == two["digest"]
    assert one["trail"] == two["trail"]
    assert two["loaded_s"] >= 0.3
    elsewhere = subprocess.run(
        [sys.executable, "-P", "-m", "nodeproof.kernels.training_step", "--golden"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (record,) = tomllib.loads(elsewhere)["golden"]
    assert record["digest"] == one["digest"]


def test_every_weight_activation_gradient_and_moment_is_in_the_trail(step):
    recipe, trail = RECIPES["cpu"], step()["trail"]
    places = [line.rpartition(" ")[0].split(" ", 2) for line in trail]
    assert [part for _, part, _ in places if part == "start"] == ["start"] * 17
    for number in range(recipe.steps):
        here = {
            part: [m for s, p, m in places if (s, p) == (str(number), part)]
            for part in ("forward", "backward", "gradient", "optimiser")
        }
        weights = {name for name, _ in initial(recipe)}
        assert here["forward"][0] == "embedding"
        assert here["forward"][-1] == "loss"
        assert here["backward"] == here["forward"][::-1]
        assert set(here["gradient"]) == weights
        moments = {f"{w} {which} moment" for w in weights for which in ("first", "second")}
        assert set(here["optimiser"]) == weights | moments
    assert len({line.rpartition(" ")[2] for line in trail}) > 0.9 * len(trail)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in range(2, 40))]
)
def test_what_is_planted_in_each_part_is_what_is_found(step, seed):
    result = step(seed=seed, plant="flip")
    assert result["found"] == result["planted"]
    parts = [fault["pass"] for fault in result["planted"]]
    assert parts == ["start", "forward", "backward", "gradient", "optimiser"]
    assert result["diverged"] == 5
    assert result["unfinite"] >= RECIPES["cpu"].steps
    judgement, _ = judged(result)
    assert judgement.broken == {
        *("runs that differ", "losses that are no number", "unlike the recorded answer")
    }
    assert result["planted"][0]["module"] in judgement.summary


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_check_knows_how_many_values_a_run_has(context, kind):
    small = {"width": 64, "heads": 4, "length": 8, "batch": 1, "vocabulary": 64, "dtype": "float32"}
    runner = Replay(
        dataclasses.replace(RECIPES[kind], **small),
        CPU,
        Context(**{**context(), "host_root": Path("/")}),
    )
    runner.run()
    device = {"cpu": DeviceKind.CPU, "cuda": DeviceKind.GPU}[kind]
    assert len(runner.known) == runner.compared == training._BEGUN[device]
    assert len(runner.reference) == training._SEEN[device]


def test_faults_are_planted_elsewhere_on_each_device(step):
    one, two = step(plant="flip")["planted"], step(plant="flip", device_id="cpu1")["planted"]
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_an_unknown_plant_is_refused(step):
    with pytest.raises(ValueError, match="knows 'flip'"):
        step(plant="fire")


def test_what_torch_was_set_to_is_put_back(step):
    torch.set_deterministic_debug_mode(0)
    step()
    assert torch.get_deterministic_debug_mode() == 0


def products_of(step, **args):
    with Outside() as counting:
        result = step(**args)
    assert result["found"] == result["planted"]
    return counting.count


def test_whichever_product_of_two_runs_is_hit_they_differ(step):
    count = products_of(step)
    assert count == 2 * PER_RUN
    for number, bit in ((0, 0), (count // 4, 31), (-1, 0)):
        with Outside(at=(number % count,), bit=bit):
            result = step()
        assert result["diverged"] == 1, f"product {number} of {count}"
        (first,) = result["found"]
        assert first["pass"] in {"forward", "backward", "gradient"}
        assert judged(result)[0].cause is Cause.HARDWARE


@pytest.mark.long
@pytest.mark.parametrize("plant", ["", "flip"])
def test_whichever_product_of_a_worker_is_hit_something_is_reported(step, plant):
    count = products_of(step, plant=plant)
    for number in range(0, count, 11 if plant else 2):
        if number // PER_RUN == 2:
            continue  # the planted run whose losses are no number: that hides what else is wrong
        with Outside(at=(number,)):
            result = step(plant=plant)
        assert result["found"] != result["planted"], f"product {number} of {count}"


def test_a_hit_beside_a_planted_fault_is_reported_too(step):
    """Even after the fault, where no value is what it is without."""
    count = 11 * PER_RUN
    for number in (1, count - 1):  # of the first run, and the last
        with Outside(at=(number,)):
            result = step(plant="flip")
        assert result["found"] != result["planted"], f"product {number} of {count}"


def test_a_device_with_faults_of_its_own_still_reports_the_planted_ones(step):
    with Outside(at=range(0, 11 * PER_RUN, 40)):
        result = step(plant="flip")
    seen = [{k: v for k, v in f.items() if k != "got"} for f in result["found"]]
    for fault in result["planted"]:
        assert {k: v for k, v in fault.items() if k != "got"} in seen


def test_a_fault_for_good_repeats_itself_and_is_outvoted(step):
    sound = step(peers=3)
    with Outside(at=None):
        broken = step(peers=3)
    assert broken["diverged"] == 0  # why a device needs witnesses
    names = [Device(kind=DeviceKind.CPU, id=f"cpu{i}", label=f"cpu{i}") for i in range(3)]
    judgement, _ = judged(broken, [(names[1], sound), (names[2], sound)])
    assert judgement.cause is Cause.HARDWARE
    assert "step 0, forward, block0.attention.in" in judgement.summary
    assert judged(sound, [(names[0], broken), (names[2], sound)])[0].outcome is Outcome.PASS
    assert judged(sound, [(names[0], broken)])[0].cause is Cause.ENVIRONMENT


def test_a_loss_that_is_no_number_is_counted_though_it_repeats(step):
    class Poison(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out.fill_(float("nan")) if str(func).startswith(PRODUCTS) else out

    with Poison():
        result = step()
    assert result["diverged"] == 0
    assert result["unfinite"] == 2 * RECIPES["cpu"].steps
    assert "losses that are no number" in judged(result)[0].broken


def test_weights_that_reach_the_device_damaged_are_told_from_the_host(step):
    """Even though every run begins with the same damage."""

    class Upload(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if str(func).startswith("aten.clone.") and tuple(out.shape) == (64, 256):
                flip(out, 5, 3)
            return out

    with Upload():
        result = step()
    assert result["diverged"] == 2
    assert {(f["pass"], f["module"]) for f in result["found"]} == {("start", "block0.mlp.down")}


# --- the digest --------------------------------------------------------------------------------

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint8"])
@pytest.mark.parametrize("count", [1, 3, 64, 1001])
def test_every_bit_of_every_element_changes_the_digest_as_python_says(dtype, count):
    digest = Digest(largest=1 << 14, device=CPU)
    values = torch.arange(1, count + 1).to(getattr(torch, dtype))
    before = unsigned(int(digest.of(values)))
    for element in {0, count // 2, count - 1}:
        for bit in range(8 * values.element_size()):
            flipped = values.clone()
            index, *words = flip(flipped, element, bit)
            if words != [int(as_words(v)[index]) & (1 << 64) - 1 for v in (values, flipped)]:
                assert count % (8 // values.element_size())  # zeros stand after the end
            got = unsigned(int(digest.of(flipped)))
            assert got != before
            assert got == digest.replaced(before, index, *words)


def test_device_and_host_find_the_same_digest():
    digest = Digest(largest=1 << 12, device=CPU)
    for size in (1, 7, 1024):
        array = np.arange(size, dtype=np.float32) * np.float32(-1.7)
        assert unsigned(int(digest.of(torch.from_numpy(array)))) == digest.of_host(array)


@pytest.mark.parametrize("bit", [15, 31, 63])
def test_an_even_number_of_wrong_signs_does_not_cancel(bit):
    digest = Digest(largest=1 << 16, device=CPU)
    words = torch.arange(4096) * 7919
    seen = {int(digest.of(words))}
    wrong = words.clone()
    for pair in range(0, 4096, 64):
        wrong[pair : pair + 2] ^= torch.tensor(1 << bit if bit < 63 else -(1 << 63))
        seen.add(int(digest.of(wrong)))
    assert len(seen) == 65


def test_words_that_change_places_change_the_digest():
    digest = Digest(largest=1 << 12, device=CPU)
    words = torch.arange(512)
    swapped = words.clone()
    swapped[[8, 200]] = swapped[[200, 8]]
    assert int(digest.of(swapped)) != int(digest.of(words))


def test_a_tensor_for_which_there_are_no_factors_is_refused():
    with pytest.raises(RuntimeError):
        Digest(largest=64, device=CPU).of(torch.zeros(9, dtype=torch.int64))


def test_what_is_not_contiguous_is_digested_as_what_it_says():
    digest = Digest(largest=1 << 12, device=CPU)
    matrix = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    assert int(digest.of(matrix.T)) == int(digest.of(matrix.T.contiguous()))
    assert int(digest.of(matrix.flatten()[1:8])) == int(digest.of(matrix.flatten()[1:8].clone()))


# --- the model ---------------------------------------------------------------------------------


def trained(steps, optimiser):
    recipe = RECIPES["cpu"]
    weights = {n: torch.from_numpy(w).requires_grad_() for n, w in initial(recipe)}
    model = Model(recipe, torch.from_numpy(tokens(recipe)))
    update = optimiser(weights)
    losses = []
    for _ in range(steps):
        loss = model.loss(weights, lambda _name, value: value)
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, list(weights.values()))
        update(dict(zip(weights, gradients, strict=True)))
    return losses, weights


def ours(weights):
    adamw = AdamW(weights)

    def update(gradients):
        with torch.no_grad():
            adamw.step(gradients, lambda _name, value: value)

    return update


def theirs(weights):
    adamw = torch.optim.AdamW(
        weights.values(), 1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False
    )

    def update(gradients):
        for name, weight in weights.items():
            weight.grad = gradients[name]
        adamw.step()

    return update


def test_the_model_learns_its_data():
    losses, _ = trained(20, ours)
    assert losses[0] == pytest.approx(np.log(RECIPES["cpu"].vocabulary), rel=0.2)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.long
def test_the_optimiser_is_the_one_it_is_named_after():
    (mine, one), (other, two) = trained(5, ours), trained(5, theirs)
    assert mine == pytest.approx(other, rel=1e-5)
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_attention_looks_back_only():
    recipe = RECIPES["cpu"]
    weights = {n: torch.from_numpy(w) for n, w in initial(recipe)}
    logits = []
    for change in (0, 1):
        data = torch.from_numpy(tokens(recipe))
        data[:, 20] = (data[:, 20] + change) % recipe.vocabulary

        def see(name, value):
            if name == "logits":
                logits.append(value)
            return value

        Model(recipe, data).loss(weights, see)
    assert torch.equal(logits[0][:, :20], logits[1][:, :20])
    assert not torch.equal(logits[0][:, 20:], logits[1][:, 20:])


# --- whole runs --------------------------------------------------------------------------------


def suite(folder, *, selftest_only=False, **environment):
    """Run the check with its self-tests on two devices."""
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "--pyargs", "nodeproof.acceptance"),
            *("-p", "no:cacheprovider", "-q", "--nodeproof-device=cpu", "-k", "training_step"),
            *("--nodeproof-profile=gate", f"--nodeproof-output={folder / 'out'}"),
            *(["--nodeproof-selftest-only"] if selftest_only else []),
        ],
        env={**os.environ, **environment},
        cwd=folder,
        check=False,
        capture_output=True,
    )
    found = results.read(folder / "out" / "results.jsonl")
    return (
        {f.device.id: f for f in found.findings},
        {t.device.id: t for t in found.selftests if t.check == "device.training.step"},
    )


def intruding(folder, number):
    """The intruder of test_bitflips, which is to hit batched products too."""
    text = INTRUDER.read_text()
    old = '("aten.mm.", "aten._int_mm.", "aten._scaled_mm.")'
    assert old in text
    (folder / "in").mkdir()
    (folder / "in" / "sitecustomize.py").write_text(text.replace(old, repr(PRODUCTS)))
    order = {"label": "cpu1", "dtype": "float32", "rows": 0, "mark": str(folder / "mark")}
    order |= {"number": number, "row": 3, "column": 5, "bit": 4}
    return {"PYTHONPATH": str(folder / "in"), "FLIP": json.dumps(order)}


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 77, 200])
def test_a_bit_flipped_in_a_product_from_outside_condemns_its_device(tmp_path, number):
    found, selftests = suite(tmp_path, **intruding(tmp_path, number))
    assert (tmp_path / "mark").exists()
    assert found["cpu1"].outcome is Outcome.FAIL
    assert found["cpu1"].cause is Cause.HARDWARE
    assert "runs that differ" in found["cpu1"].summary
    assert found["cpu0"].outcome is Outcome.PASS
    assert selftests["cpu0"].caught
    assert selftests["cpu1"].caught


@pytest.mark.long
@pytest.mark.parametrize("number", [700, 1500, 2500])
def test_whether_a_run_or_a_self_test_is_hit_it_is_no_pass(tmp_path, number):
    found, selftests = suite(tmp_path, **intruding(tmp_path, number))
    # How many products a run comes to depends on the machine.
    hit = (tmp_path / "mark").exists()
    passed = found["cpu1"].outcome is Outcome.PASS and selftests["cpu1"].caught
    assert passed is not hit
    assert found["cpu0"].outcome is Outcome.PASS


@pytest.mark.long
def test_two_devices_of_which_one_is_broken_for_good_are_both_undecided(tmp_path):
    found, _ = suite(tmp_path, **intruding(tmp_path, "every"))
    for device in ("cpu0", "cpu1"):
        assert found[device].outcome is Outcome.FAIL
        assert found[device].cause is Cause.ENVIRONMENT
        assert "no device is blamed" in found[device].summary


def test_the_self_test_catches_every_planted_fault(tmp_path):
    _, selftests = suite(tmp_path, selftest_only=True)
    assert {d: t.caught for d, t in selftests.items()} == {"cpu0": True, "cpu1": True}


BREAKS = [
    ("kernels/training_step.py", "if number != against[at]]", "if number > 1 << 70]"),
    ("kernels/training_step.py", "self._hold(trail, {**reference, **self.known}, stop=stop, also=also)", "pass"),
    ("kernels/training_step.py", "for at, number in mine if", "for at, number in mine[len(self.known) :] if"),
    ("kernels/training_step.py", "for at, number in mine if", "for at, number in mine[: len(self.known)] if"),
    ("kernels/training_step.py", "self.unfinite += tape.unfinite()", "pass"),
    ("kernels/training_step.py", "{at} {number:016x}", "{at} {7:016x}"),
    ("kernels/tape.py", "torch.count_nonzero(~torch.isfinite", "0 * torch.count_nonzero(~torch.isfinite"),
    ("acceptance/test_training_step.py", "if all(other[name] == value for", "if all(False for"),
    ("acceptance/test_training_step.py", 'len(result["trail"]), at_least=seen', 'len(result["trail"])'),
    ("acceptance/test_training_step.py", 'int(_summary(result["trail"]) != result["digest"])', "0"),
    ("acceptance/test_training_step.py", 'result["unfinite"],\n        at_most=0', 'result["unfinite"]'),
    ("kernels/training_step.py", "dict.fromkeys((parted[0],", "dict.fromkeys((parted[-1],"),
    ("kernels/tape.py", "self._seen[at] = self._digest.of(tensor)", "self._seen[at] = torch.tensor(5)"),
    ("kernels/digest.py", "x *= self._on_device[: flat.numel()]", "x *= 0"),
    ("acceptance/test_training_step.py", 'result["diverged"], at_most=0', 'result["diverged"]'),
    ("acceptance/test_training_step.py", 'result["runs"] - 1, at_least=1', 'result["runs"] - 1'),
    ("acceptance/test_training_step.py", 'begun + (result["runs"] - 1) * seen', "0"),
    ("acceptance/test_training_step.py", "at_most=0 if recorded else None", "at_most=None"),
    ("acceptance/test_training_step.py", "at_most=0 if result[", "at_most=None if result["),
    ("acceptance/test_training_step.py", 'if other["digest"] != own]', "if False]"),
    ("acceptance/test_training_step.py", "for device, other in peers\n", "for device, other in peers[:0]\n"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [pytest.param(*row, id=row[1].strip()) for row in BREAKS],
)
def test_a_comparison_that_is_broken_is_a_self_test_that_is_missed(
    tmp_path, monkeypatch, file, old, new
):
    # In a whole run the load would only take longer.
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nodeproof-profile=gate --nodeproof-selftest-only")
    found = run_with(tmp_path, file, old, new, "training_step")
    assert False in caught(found, "training.step")


# What is left out of a run, or of what is made of it: the check's own answer says so.
OMISSIONS = [
    ("kernels/training_step.py", '"digest": _summary(trail)', '"digest": "00"'),
    ("kernels/training_step.py", '"digest": _summary(trail)', '"digest": _summary(trail[:3])'),
    ("kernels/training_step.py", "for step in range(self._recipe.steps)", "for step in range(1)"),
    ("kernels/training_step.py", "self._judge(trail, self.reference)\n", "pass\n"),
    ("kernels/training_step.py", "        self._judge(trail, self.reference)\n", "        if not self.reference:\n            self._judge(trail, self.reference)\n"),
    ("kernels/tape.py", "        tensor.register_hook(hook)\n", ""),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("file", "old", "new"), OMISSIONS)
def test_what_is_left_out_of_a_run_is_no_pass(tmp_path, monkeypatch, file, old, new):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nodeproof-profile=gate")
    found = run_with(tmp_path, file, old, new, "training_step")
    assert found.findings
    assert Outcome.PASS not in {f.outcome for f in found.findings if f.key.check == CHECK}


def test_the_check_is_left_to_the_longer_profiles():
    declared = spec_of(training.test_training_step)
    assert declared.profiles == {Profile.GATE, Profile.DEEP, Profile.SOAK}
