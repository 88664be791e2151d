"""The protocol buffers that later SDKs send and expect for passes and samples; their definitions are the SDK's."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

MEDIA_TYPE = "application/x-protobuf"


def decode_pass(message: bytes) -> dict[str, Any]:
    """Return a request for a pass as earlier SDKs send it."""
    from tinker.proto import tinker_public_pb2 as proto

    request = proto.ForwardBackwardRequest.FromString(message)
    kinds = {proto.DTYPE_INT64: "q", proto.DTYPE_FLOAT32: "f"}
    data = [
        {
            "model_input": {
                "chunks": [{"tokens": array("i", chunk.encoded_text.tokens).tolist()} for chunk in row.model_input]
            },
            "loss_fn_inputs": {
                name: {"data": array(kinds[value.dtype], value.dense).tolist()}
                for name, value in row.loss_fn_inputs.items()
            },
        }
        for row in request.data
    ]
    batch = {"data": data, "loss_fn": request.loss_fn, "loss_fn_config": dict(request.loss_fn_config)}
    return {"model_id": request.model_id, "forward_backward_input": batch, "forward_only": request.forward_only}


def encode_answer(answer: dict[str, Any]) -> bytes | None:
    """Encode what a pass or a sample has returned; all else stays JSON."""
    if not answer.keys() & {"sequences", "loss_fn_outputs"}:
        return None
    from tinker.proto import tinker_public_pb2 as proto

    if "sequences" in answer:
        reasons = {"stop": proto.STOP_REASON_STOP, "length": proto.STOP_REASON_LENGTH}
        sequences = [
            proto.SampledSequence(
                stop_reason=reasons[one["stop_reason"]],
                tokens=array("i", one["tokens"]).tobytes(),
                logprobs=array("f", one["logprobs"]).tobytes(),
            )
            for one in answer["sequences"]
        ]
        prompt = array("f", [float("nan") if value is None else value for value in answer["prompt_logprobs"] or []])
        return proto.SampleResponse(sequences=sequences, prompt_logprobs=prompt.tobytes()).SerializeToString()
    rows = answer["loss_fn_outputs"]
    fields = {}
    for name in rows[0]:
        columns = [array("f", row[name]["data"]).tobytes() for row in rows]
        offsets = array("q", accumulate(map(len, columns), initial=0)).tobytes()
        fields[name] = proto.BatchedTensor(data=b"".join(columns), offsets=offsets, dtype=proto.DTYPE_FLOAT32)
    record = proto.ArrayRecord(fields=fields, num_datums=len(rows))
    kind = answer["loss_fn_output_type"]
    output = proto.ForwardBackwardOutput(loss_fn_output_type=kind, loss_fn_outputs=[record], metrics=answer["metrics"])
    return output.SerializeToString()
