"""What stands in front of a launcher, as documentation of each program prints it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import behind_dashes, read_line
from nccl_doctor.launch.wrappers import the_start

LINE = "torchrun --nnodes=4 --nproc_per_node=8 train.py --epochs 3"
FRONTS = [
    "nohup",
    "time",
    "timeout -k 5 2h",
    "sudo -E -u ann",
    "nice -n 10 ionice -c2 -n 0",
    "numactl --cpunodebind=0 --membind 0",
    "numactl -N 0 -m 0",
    "taskset -c 0-7",
    "stdbuf -oL",
    "uv run",
    "uv run --python 3.12 --with torch --frozen",
    "conda run -n train --no-capture-output",
    "micromamba run -p /opt/env",
    "poetry run",
    "srun",
    "srun -N 4 --ntasks-per-node=1 --cpus-per-task 16 --kill-on-bad-exit=1",
    "srun --label -p gpu --container-image nvcr.io/nvidia/pytorch:25.10-py3 --container-writable",
    "docker run --rm -it --gpus all --network=host --ipc host -v /data:/data:ro nvcr.io/nvidia/pytorch:25.10-py3",
    "docker exec -it -w /work train",
    "podman run --device nvidia.com/gpu=all --ulimit memlock=-1 --shm-size 16g image",
    "apptainer exec --nv --bind /data:/data image.sif",
    "singularity exec --nv -B /data image.sif",
    "env -u NCCL_DEBUG nohup",
    "mpirun -np 4 -H node1,node2,node3,node4 --mca btl ^openib -bind-to none --allow-run-as-root",
]


@pytest.mark.parametrize("front", FRONTS)
def test_a_launcher_is_read_through_what_stands_in_front(front: str) -> None:
    plain, line = read_line(shlex.split(LINE)), read_line(shlex.split(f"{front} {LINE}"))
    assert (line.launcher, line.options, line.script, line.unread) == ("torchrun", plain.options, plain.script, None)
    again = line.written({"nnodes": "2"}, line.script, {})
    assert [*again] == shlex.split(f"{front} {LINE}".replace("nnodes=4", "nnodes=2"))


@pytest.mark.parametrize(
    "front",
    [
        "NCCL_IB_HCA=mlx5",
        "env NCCL_IB_HCA=mlx5",
        "nohup env NCCL_IB_HCA=mlx5",
        "sudo -E NCCL_IB_HCA=mlx5",
        "mpirun -x NCCL_IB_HCA=mlx5 -np 2 -H node1,node2",
        "mpiexec -genv NCCL_IB_HCA mlx5 -n 2",
        "docker run -e NCCL_IB_HCA=mlx5 --rm image",
        "docker run --env=NCCL_IB_HCA=mlx5 image",
        "apptainer exec --env NCCL_IB_HCA=mlx5 image.sif",
        "srun --export=ALL,NCCL_IB_HCA=mlx5",
    ],
)
def test_a_variable_is_seen_wherever_it_is_set_and_changed_there(front: str) -> None:
    line = read_line(shlex.split(f"{front} {LINE}"))
    assert line.variables == {"NCCL_IB_HCA": "mlx5"}
    again = " ".join(line.written({}, line.script, {}))
    assert again.count("mlx5") == 1
    if "-genv" not in front:  # two words, of which neither says both
        assert "NCCL_IB_HCA=mlx4" in " ".join(line.written({}, line.script, {"NCCL_IB_HCA": "mlx4"}))


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "-c", LINE),
        ("bash", "-lc", f"cd /work && exec {LINE}"),
        ("docker", "exec", "train", "sh", "-c", f"export A=1; {LINE} 2>&1".replace(" 2>&1", "")),
        (LINE,),
    ],
)
def test_a_shell_s_own_words_are_read(words: tuple[str, ...]) -> None:
    line = read_line(words)
    assert (line.launcher, line.options["nnodes"], line.unread) == ("torchrun", "4", None)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("make train", "what make starts is not known here"),
        ("nosuchpython train.py", "what nosuchpython starts is not known here"),
        ("bash run", "what bash run starts is not known here"),
        ("docker compose up", "what docker compose starts is not known here"),
        ("bash -c 'torchrun --nnodes=$(nodes) train.py'", "only the shell can tell what --nnodes='$' is"),
        ("bash -c 'torchrun a.py; torchrun b.py'", "2 lines of the shell's words start a job"),
        ("bash -c 'echo hello'", "no lines of the shell's words start a job"),
    ],
)
def test_what_can_t_be_read_says_so(words: str, why: str) -> None:
    assert why in (read_line(shlex.split(words)).unread or "")


def test_a_script_of_a_shell_is_read_and_not_run(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N 4\nset -euo pipefail\nexport NCCL_DEBUG=INFO  # loud\n"
        f"touch {tmp_path}/ran\nsrun torchrun \\\n  --nnodes=4 --nproc_per_node=8 \\\n  train.py\n"
    )
    for words in (("bash", str(script)), (str(script),), ("sh", "-e", str(script))):
        _, line = behind_dashes(words, ["nccl-doctor", "check", "--", *words])
        read = read_line(line)
        assert (read.launcher, read.options["nnodes"], read.variables) == ("torchrun", "4", {"NCCL_DEBUG": "INFO"})
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError, match=r"run2\.sh can't be read here"):
        behind_dashes(("bash", f"{script.with_name('run2.sh')}"), ["x", "--", "bash", f"{script.with_name('run2.sh')}"])


@pytest.mark.parametrize("script", ["if x; then\n torchrun t.py\nfi", "torchrun --nnodes=$(wc -l < h) t.py"])
def test_what_only_a_shell_can_tell_is_not_guessed(script: str) -> None:
    try:
        words = the_start(script)
    except UsageError:
        return
    assert words == ("torchrun", "t.py")
