"""What TensorBoard's own reader finds in a folder of event files: board_scalars.py DIR"""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
hparams = plugin_data_pb2.HParamsPluginData.FromString(
    events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
)
json.dump(
    {
        "scalars": {t: [[e.step, e.value] for e in events.Scalars(t)] for t in tags["scalars"]},
        "settings": events.Tensors("run/settings")[-1].tensor_proto.string_val[0].decode(),
        "starts": [e.step for e in events.Tensors("run/start")],
        "steps": hparams.session_start_info.hparams["train.steps"].number_value,
    },
    sys.stdout,
)
