"""Lines `// lab: ...`, contracts in files and NPU machines as careless or hostile writers have them."""

import json

import pytest

from clrope.errors import ConfigError
from clrope.lab.directives import parameter_value, with_directives
from clrope.lab.lab_kernel import load_file
from clrope.lab.npu.npu_machine import NpuMachine, machine

KERNEL = "__kernel void k(__global float *xy, int tokens) {}\n"


@pytest.fixture
def directive(tmp_path):
    """What the lines `// lab: ...` of a text make of the contract."""
    return lambda text: with_directives(None, text, tmp_path / "k.cl")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('// lab: options "-DX', "options: got '\"-DX', words as in a shell are needed (No closing quotation)"),
        ("// lab: options \\", "options: got '\\\\', words as in a shell are needed (No escaped character)"),
        ("// lab: contract", "got the line `// lab: contract`, allowed are kernel, contract"),
        ("// lab: contract clrope\n// lab: contract clrope", "two lines `// lab: ...` say 'contract', one is needed"),
        ("// lab: kernel a\n// lab: kernel b", "two lines `// lab: ...` say 'kernel', one is needed"),
        ("// lab: tune N = 1\n// lab: tune N = 2", "two lines `// lab: ...` say 'tune N', one is needed"),
        ("// lab: x = y\n// lab: x = xy", "two lines `// lab: ...` say 'x =', one is needed"),
        ("// lab: local x = 4\n// lab: local x = 8", "two lines `// lab: ...` say 'local x =', one is needed"),
        ("// lab: global_size 1\n// lab: global_size 2", "two lines `// lab: ...` say 'global_size', one is needed"),
        ("// lab: tune 4 = 1", "got the line `// lab: tune 4 = 1`, allowed are kernel, contract"),
        (
            "// lab: global_size 1\n// lab: local_size 1, 1",
            "local_size: got 2 expressions, as many as of global_size (1)",
        ),
        (
            "// lab: global_size 1, 1, 1, 1",
            "global_size: got ('1', '1', '1', '1'), a tuple of one to three str is needed",
        ),
        ("// lab: tune N = ٣", "got the line `// lab: tune N = ٣`"),
        ("// lab: requires " + "(," * 5000, "a line `// lab: ...` has 10009 characters, at most 10000"),
    ],
)
def test_lines_that_are_refused(lines, message, directive, tmp_path):
    with pytest.raises(ConfigError) as caught:
        directive(lines)
    assert str(caught.value).startswith(f"{tmp_path / 'k.cl'}: {message}")


def test_lines_that_add_up(directive):
    contract, _ = directive(
        "// lab: options -DA\n// lab: options '-DB=1 2'\n// lab: requires a\n// lab: requires b, min(c, d)"
    )
    assert contract.options == ("-DA", "-DB=1 2")
    assert [test for test, _ in contract.requires][-3:] == ["a", "b", "min(c, d)"]


def test_lines_that_say_nothing(directive):
    assert directive("// lab:\n// lab: \t\r\n// lab:") == directive("")


def test_a_comma_in_nested_brackets_divides_nothing(directive):
    contract, _ = directive("// lab: global_size min(a, max(b, c)), ceil_div(a, 2)")
    assert contract.global_size == ("min(a, max(b, c))", "ceil_div(a, 2)")


def test_lines_of_windows(directive):
    contract, kernel = directive("// lab: contract ggml-opencl\r\n// lab: kernel k\r\n// lab: tokens = 3\r\n")
    assert (contract.name, kernel, contract.arguments["tokens"]) == ("ggml-opencl", "k", "3")


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1_0", "1_0"), ("nan", "nan"), ("inf", "inf"),
     ("1e999", "1e999"), ("9" * 5000, "9" * 5000), ("float4", "float4"), ("٣", "٣")],
)  # fmt: skip
def test_values_are_numbers_where_c_has_them(text, value):
    found = parameter_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" + ".a" * 200 + " = 1", "is no contract (line 1 has more than 100 dots)"),
        ("[" + "a." * 200 + "a]", "is no contract (line 1 has more than 100 dots)"),
        ("#" * 300_000, "cannot be read as a contract (it has more than 262144 bytes)"),
    ],
)
def test_contracts_that_would_take_long(text, message, tmp_path):
    kernel, path = tmp_path / "k.cl", tmp_path / "c.toml"
    kernel.write_text(KERNEL)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_file(kernel, path)
    assert str(caught.value) == f"{path}: {message}"


def test_dots_in_a_comment_of_a_contract(tmp_path):
    kernel, path = tmp_path / "k.cl", tmp_path / "c.toml"
    kernel.write_text(KERNEL)
    path.write_text("# " + "." * 200 + '\nname = "mine"')
    assert load_file(kernel, path).contract.name == "mine"


def of_kernel_tuner(space=None, **more):
    spec = {"KernelName": "k", "GlobalSize": {"X": "tokens"}, "KernelFile": "k.cl", **more}
    return json.dumps({"KernelSpecification": spec, "ConfigurationSpace": space or {}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (of_kernel_tuner(GlobalSizeType="threads"), "GlobalSizeType: got 'threads', allowed are 'OpenCL', 'CUDA'"),
        (
            of_kernel_tuner({"TuningParameters": [{"Name": "N", "Values": "[1]"}] * 2}),
            "TuningParameters: 'N' is there twice",
        ),
        (of_kernel_tuner(Arguments=[{"Name": "x", "Meaning": "xy"}] * 2), "Arguments: 'x' is there twice"),
        (
            of_kernel_tuner()[:-1] + ', "ConfigurationSpace": {}}',
            "is no contract (the key 'ConfigurationSpace' is there twice)",
        ),
    ],
)
def test_files_of_kernel_tuner_that_say_two_things(text, message, tmp_path):
    (tmp_path / "k.cl").write_text(KERNEL)
    path = tmp_path / "t1.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cores=1,cores=2", "npu: got 'cores=2', cores is there twice"),
        ("cores=1_0", "npu: cores=1_0: is no machine (Expected `int`, got `str` - at `$.cores`)"),
        ("latency_ns=1_0", "npu: latency_ns=1_0: is no machine (Expected `float`, got `str` - at `$.latency_ns`)"),
        ("cores=٣", "npu: cores=٣: is no machine (Expected `int`, got `str` - at `$.cores`)"),
        ("ub=1iB", "npu: ub=1iB: ub: got '1iB', a number of bytes such as 196608 or 192K is needed"),
        ("ub=٣K", "npu: ub=٣K: ub: got '٣K', a number of bytes such as 196608 or 192K is needed"),
    ],
)
def test_machines_that_are_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        machine(text)
    assert str(caught.value) == message


def test_a_size_of_very_many_digits():
    with pytest.raises(ConfigError, match=r"ub: got '9{80}', a number of bytes"):
        machine("ub=" + "9" * 5000)


def test_numbers_of_a_machine_file_are_no_texts(tmp_path):
    values = {name: getattr(machine("generic"), name) for name in NpuMachine.__struct_fields__}
    path = tmp_path / "m.toml"

    def write(**more):
        path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in {**values, **more}.items()))
        return machine(str(path))

    assert write(ub="192KiB").ub == 196608
    with pytest.raises(ConfigError, match=r"Expected `int`, got `str` - at `[$].cores`"):
        write(cores="32")
    with pytest.raises(ConfigError, match=r"Expected `float`, got `str` - at `[$].clock_ghz`"):
        write(clock_ghz="1.0")
