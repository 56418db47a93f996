"""Tables of the command-line options of launchers and engines, and parsers that use these tables.

Sources: torch/distributed/run.py and launch.py of PyTorch 2.13, accelerate/commands/launch.py 1.15,
deepspeed/launcher/runner.py 0.19, mpirun(1), srun(1), vllm/engine/arg_utils.py 0.33, sglang/srt/arg_groups/fields 0.5,
and ray/scripts/scripts.py 2.60. The options of an installed launcher might differ from these tables.
:func:`source_options` therefore reads the options from the launcher's source code, without running the code. Launchers
accept "-" instead of "_" in option names, and "=" before a value.
"""

from __future__ import annotations

import os
import re
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple


class LauncherOptions(NamedTuple):
    """The command-line options of a launcher or engine.

    Attributes:
        name: name of the launcher, such as "torchrun" or "launch" (torch.distributed.launch), or "script" for a script
            that starts its own ranks.
        options: dictionary that maps the name of each option (with "_" instead of "-") to whether the option takes a
            value.
        same: dictionary that maps an option to the name of torchrun's equivalent option. An engine's option that sets a
            parallel size is mapped to "tensor", "pipeline" or "data".
        closed: whether all options of the launcher are in ``options``, so that any other option is an error.
        abbreviates: whether the launcher accepts any unambiguous prefix of an option.
        placed: whether each host has its own command line, which contains the host's rank.
        engine: whether the launcher is an engine, whose options may follow the model name.
        pairs: options that take two values.
    """

    name: str
    options: Mapping[str, bool] = {}
    same: Mapping[str, str] = {}
    closed: bool = False
    abbreviates: bool = False
    placed: bool = False
    engine: bool = False
    pairs: FrozenSet[str] = frozenset()

    def written(self, notion: str) -> str:
        same = [name for name, meaning in self.same.items() if meaning == notion]
        option = notion if notion in self.options else max(same, key=len, default=notion)  # short ones have one "-"
        return "--" + (option.replace("_", "-") if self.engine else option)

    @property
    def notions(self) -> frozenset[str]:
        """Names of the settings that the launcher's options specify. Where possible, torchrun's names are used."""
        return frozenset(self.same.get(name, name) for name in self.options)

    def named(self, asked: str) -> str | None:
        """Return the full name of an option, or None if the option is unknown.

        ``asked`` may be an unambiguous prefix if the launcher accepts prefixes.
        """
        if asked in self.options or not self.closed:
            return asked
        near = [name for name in self.options if len(asked) > 1 and name.startswith(asked)]
        return near[0] if len(near) == 1 and self.abbreviates else None

    def nearest(self, asked: str) -> str | None:
        """Return the known option that is most similar to a misspelled option, or None if no option is similar."""
        import difflib

        near = difflib.get_close_matches(asked.lstrip("-").replace("-", "_"), self.options, 1)
        return near[0] if near else None


class Option(NamedTuple):
    """An option on a command line: its name, torchrun's name for the setting, its spelling, and its value."""

    name: str
    notion: str
    written: str
    value: Optional[str]


class ParsedLine(NamedTuple):
    """A command line as a launcher interprets it.

    Attributes:
        options: options on the command line. An unknown option is replaced by the most similar known option, if there
            is one.
        told: dictionary of the values of all options. The key of an option is torchrun's name for the setting, or the
            option's own name if torchrun has no such setting. The value of a flag is an empty string.
        unknown: options that the launcher does not know, as spelled on the command line.
        rest: name of the engine's model, or the training script and the script's arguments.
    """

    options: Tuple[Option, ...]
    told: Dict[str, str]
    unknown: Tuple[str, ...]
    rest: Tuple[str, ...]


def _table(values: str, flags: str = "") -> dict[str, bool]:
    return {**dict.fromkeys(values.split(), True), **dict.fromkeys(flags.split(), False)}


_MPIRUN_FLAGS = [
    "allow_run_as_root",
    "oversubscribe",
    "nooversubscribe",
    "tag_output",
    "timestamp_output",
    "report_bindings",
    "display_map",
    "display_allocation",
    "display_topo",
    "merge_stderr_to_stdout",
    "bynode",
    "byslot",
    "bycore",
    "nolocal",
    "do_not_launch",
    "enable_recovery",
    "disable_recovery",
    "index_argv_by_rank",
    "preload_binary",
    "no_oversubscribe",
    "v",
    "verbose",
    "q",
    "quiet",
    "V",
    "version",
    "d",
    "debug_devel",
    "genvall",
    "genvnone",
    "envall",
    "envnone",
    "l",
    "prepend_rank",
]
"""Flags (options without a value) of Open MPI's mpirun (versions 4 and 5) and of Hydra (MPICH 4, Intel MPI 2021)."""


_TORCHRUN = _table(
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method "
    "event_log_handler role log_dir r redirects t tee local_ranks_filter node_rank master_addr master_port local_addr "
    "logs_specs duplicate_stdout_filters duplicate_stderr_filters numa_binding signals_to_handle shutdown_timeout "
    "log_line_prefix_template print_completion",
    "standalone m module no_python run_path virtual_local_rank h help",
)
_ACCELERATE = _table(
    "config_file mixed_precision num_processes num_machines num_cpu_threads_per_process dynamo_backend dynamo_mode "
    "gpu_ids machine_rank main_process_ip main_process_port t tee log_dir role rdzv_backend rdzv_conf max_restarts "
    "monitor_interval vm env main_training_function zero_stage offload_optimizer_device offload_param_device "
    "offload_optimizer_nvme_path offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag "
    "zero3_save_16bit_model aws_access_key_id aws_secret_access_key mpirun_hostfile",
    "h help quiet q cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic "
    "dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network m "
    "module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug",
)
_FAMILIES = {
    "deepspeed": "config_file hostfile exclusion_filter inclusion_filter multinode_launcher moe_layer_cls_names",
    "fsdp": "version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy "
    "transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params "
    "cpu_ram_efficient_loading sync_module_states activation_checkpointing activation_checkpointing_offload",
    "megatron_lm": "tp_degree use_custom_fsdp no_load_optim eod_mask_loss overlap_cpu_optimizer_d2h_h2d "
    "no_save_optim optimizer_cpu_offload use_precision_aware_optimizer decoder_last_pipeline_num_layers pp_degree "
    "num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer gradient_clipping "
    "recompute_granularity recompute_method recompute_num_layers attention_backend expert_model_parallel_size "
    "context_parallel_size attention_dropout hidden_dropout attention_softmax_in_fp32 expert_tensor_parallel_size "
    "calculate_per_token_loss use_rotary_position_embeddings",
    "fp8": "backend margin interval format amax_history_len amax_compute_algo override_linear_precision opt_level "
    "enable_fsdp_float8_all_gather pad_inner_dim",
    "parallelism_config": "dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size "
    "sp_backend sp_seq_length sp_seq_length_is_variable sp_attn_implementation",
}
_ACCELERATE.update({f"{family}_{name}": True for family, names in _FAMILIES.items() for name in names.split()})
_DEEPSPEED = _table(
    "H hostfile i include e exclude num_nodes num_gpus num_accelerators master_port master_addr node_rank launcher "
    "launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script log_level",
    "h help module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank q quiet",
)
_SIZES = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
_LONG = {"tensor_parallel_size": "tensor", "pipeline_parallel_size": "pipeline", "data_parallel_size": "data"}
LAUNCHERS = {
    options.name: options
    for options in (
        LauncherOptions("script"),
        LauncherOptions("torchrun", _TORCHRUN, closed=True, abbreviates=True, placed=True),
        LauncherOptions("launch", {**_TORCHRUN, "use_env": False}, closed=True, abbreviates=True, placed=True),
        LauncherOptions(
            "accelerate",
            _ACCELERATE,
            {
                "num_machines": "nnodes",
                "machine_rank": "node_rank",
                "main_process_ip": "master_addr",
                "main_process_port": "master_port",
                "num_processes": "world_size",
            },
            closed=True,
            placed=True,
        ),
        LauncherOptions(
            "deepspeed",
            _DEEPSPEED,
            {"num_nodes": "nnodes", "num_gpus": "nproc_per_node", "num_accelerators": "nproc_per_node"},
            closed=True,
            abbreviates=True,
        ),
        LauncherOptions(
            "mpirun",
            options=dict.fromkeys(_MPIRUN_FLAGS, False),
            same={
                "np": "world_size",
                "n": "world_size",
                "npernode": "nproc_per_node",
                "ppn": "nproc_per_node",
                "perhost": "nproc_per_node",
            },
            pairs=frozenset({"mca", "gmca", "prtemca", "pmixmca", "omca", "genv", "env"}),
        ),
        LauncherOptions(
            "srun",
            same={
                "N": "nnodes",
                "nodes": "nnodes",
                "ntasks_per_node": "nproc_per_node",
                "n": "world_size",
                "ntasks": "world_size",
            },
        ),
        LauncherOptions(
            "vllm",
            _table(
                "nnodes node_rank master_addr master_port tp tensor_parallel_size pp pipeline_parallel_size dp "
                "data_parallel_size distributed_executor_backend n r",
                "headless enforce_eager trust_remote_code enable_expert_parallel enable_prefix_caching",
            ),
            {**_LONG, **_SIZES, "n": "nnodes", "r": "node_rank"},
            placed=True,
            engine=True,
        ),
        LauncherOptions(
            "sglang",
            _table(
                "nnodes node_rank dist_init_addr nccl_init_addr tp tp_size tensor_parallel_size pp_size "
                "pipeline_parallel_size dp dp_size data_parallel_size model_path model nccl_port",
                "trust_remote_code enable_dp_attention skip_server_warmup disable_cuda_graph enable_metrics",
            ),
            {
                "dist_init_addr": "rdzv_endpoint",
                "nccl_init_addr": "rdzv_endpoint",
                **{f"{name}_size": notion for name, notion in _SIZES.items()},
                **_LONG,
                **_SIZES,
            },
            placed=True,
            engine=True,
        ),
        LauncherOptions(
            "ray",
            _table(
                "node_ip_address port address num_gpus num_cpus temp_dir", "head block disable_usage_stats verbose v"
            ),
            engine=True,
        ),
    )
}

PROGRAMS = {
    "torchrun": ("torchrun", ()), "deepspeed": ("deepspeed", ()), "accelerate": ("accelerate", ("launch",)),
    "accelerate-launch": ("accelerate", ()), "mpirun": ("mpirun", ()), "mpiexec": ("mpirun", ()), "srun": ("srun", ()),
    "vllm": ("vllm", ("serve",)), "sglang": ("sglang", ("serve",)), "ray": ("ray", ("start",)),
}  # fmt: skip
"""Maps a program's name to its launcher and to the arguments that must follow the name."""
MODULES = {
    "torch.distributed.run": ("torchrun", ()),
    "torch.distributed.launch": ("launch", ()),
    "accelerate.commands.launch": ("accelerate", ()),
    "accelerate.commands.accelerate_cli": ("accelerate", ("launch",)),
    "deepspeed.launcher.runner": ("deepspeed", ()),
    "sglang.launch_server": ("sglang", ()),
    "vllm.entrypoints.openai.api_server": ("vllm", ()),
}
_PYTHON = re.compile(r"(?:i?python|pypy)[0-9.]*[a-z]?")
_ALONE = re.compile(r"-[BbdEIOPqRsSuvx]+")
"""Pattern for the Python interpreter's options that take no value (``python --help``)."""
_MODULE = re.compile(r"-[BbdEIOPqRsSuvx]*m")
_VALUED = ("-X", "-W", "--check-hash-based-pycs")


def port_words(programs: Sequence[str], port: int) -> tuple[str, ...]:
    """Return launch commands that set the master port.

    Commands of torch's launchers are returned only if no other launcher in ``programs`` can set the port.
    """
    starts = {name: (name, *of) for name, of in PROGRAMS.items()}
    starts.update({name: (f"python -m {name}", *of) for name, of in MODULES.items()})
    usual = ("torchrun", "torch.distributed.launch")
    names = [
        name for name in dict.fromkeys(programs) if name in starts and starts[name][1] not in ("torchrun", "launch")
    ]
    able = [name for name in names if "master_port" in LAUNCHERS[starts[name][1]].notions]
    commands = ((starts[name], LAUNCHERS[starts[name][1]].written("master_port")) for name in able or usual)
    return tuple(f"{' '.join((start, *more))} {option} {port} …" for (start, _, more), option in commands)


def find_launcher(words: Sequence[str]) -> tuple[LauncherOptions, int]:
    """Return the launcher of a command line and the index of the launcher's first argument.

    If the command line runs an ordinary script, the launcher with the name "script" is returned.
    """
    known, at = PROGRAMS.get(os.path.basename(words[0])), 1
    if known is None and _PYTHON.fullmatch(os.path.basename(words[0])):
        while words[at : at + 1] and (words[at] in _VALUED or _ALONE.fullmatch(words[at])):
            at += 2 if words[at] in _VALUED else 1
        script, at = at, at + (2 if any(map(_MODULE.fullmatch, words[at : at + 1])) else 1)
        name = "".join(words[at - 1 : at])
        known = MODULES.get(name) if at - script == 2 else PROGRAMS.get(os.path.basename(name))
    else:
        script = 0
    if known is not None and tuple(words[at : at + len(known[1])]) == known[1]:
        return LAUNCHERS[known[0]], at + len(known[1])
    return LAUNCHERS["script"], script


def read_words(launcher: LauncherOptions, words: Sequence[str]) -> ParsedLine:
    left, options, values, unknown, places = list(words), [], {}, [], []
    while left and left[0] != "--" and (left[0].startswith("-") or launcher.engine):
        if not left[0].startswith("-"):  # an engine's model
            places.append(left.pop(0))
            continue
        written, sign, value = left.pop(0).partition("=")
        asked = written.lstrip("-").replace("-", "_")
        name = launcher.named(asked)
        if name is None:
            unknown.append(written)
            name = launcher.nearest(asked)
            written = f"--{name}" if name is not None else written
        takes = launcher.options.get(name, True) if name is not None else True
        certain = name is not None and not launcher.engine
        if not sign and takes and left and (certain or not left[0].startswith("-")):
            value, sign = left.pop(0), "="
            if name in launcher.pairs and left:
                value += " " + left.pop(0)
        notion = launcher.same.get(name or asked, name or asked)
        values[notion] = value
        if name is not None:
            options.append(Option(name, notion, written, value if sign else None))
    return ParsedLine(tuple(options), values, tuple(unknown), (*places, *(left[1:] if left[:1] == ["--"] else left)))


SOURCES = {
    "torchrun": ("torch/distributed/run.py",),
    "launch": ("torch/distributed/run.py", "torch/distributed/launch.py"),
    "accelerate": ("accelerate/commands/launch.py",),
    "deepspeed": ("deepspeed/launcher/runner.py",),
}
"""Source files that define a launcher's options, relative to a directory in ``sys.path``."""
MOST_OPTIONS = 512
_ADDED = re.compile(
    r"""^[ \t]*[\w.]{1,64}\.add_argument\(\s*((?:["']--?[A-Za-z][\w-]{0,63}["']\s*,?\s*){1,4})""",
    re.ASCII | re.MULTILINE,
)
_NAME = re.compile(r"""["']--?([\w-]+)["']""", re.ASCII)
_FLAG = re.compile(r"""\baction\s*=\s*(?:check_env|["'](?:store_true|store_false|store_const|count)["'])""")


def source_options(text: str) -> dict[str, bool]:
    """Return a dictionary of the argparse options in a program's source code.

    The entry of an option is True if the option takes a value.
    """
    options: Dict[str, bool] = {"h": False, "help": False}
    added: List[re.Match[str]] = list(_ADDED.finditer(text))
    for place, match in enumerate(added):
        end = added[place + 1].start() if place + 1 < len(added) else match.end() + 2000
        takes = _FLAG.search(text, match.end(), end) is None
        for name in _NAME.findall(match[1])[: MOST_OPTIONS - len(options)]:
            options.setdefault(name.replace("-", "_"), takes)
    return options
