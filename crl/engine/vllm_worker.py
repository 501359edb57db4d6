"""Runs inside a vLLM server, whose worker it extends (`--worker-extension-cls`): takes new weights while it lives.

A server's folder gets a copy of this file: vLLM is in an environment of its own, without this project. vLLM 0.32 has
`reload_weights`; on a CPU that leaves an output head that is tied to the embeddings as it was packed when it started.
"""

from __future__ import annotations

from typing import Any


class Worker:
    """What `POST /collective_rpc` can ask for beside vLLM's own. Requests must be paused."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Any

    def read_weights(self, directory: str) -> None:
        """Replace all weights by those of a directory."""
        self.reload_weights(weights_path=directory)
        self._pack_head()

    def begin_files(self) -> None:
        """From now on all weights are replaced, by those of one file after the other."""
        layerwise, model = self._layerwise()
        layerwise.initialize_layerwise_reload(model)

    def take_file(self, file: str) -> None:
        """Replace those weights that a file has."""
        from safetensors.torch import load_file
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(load_file(file).items())

    def end_files(self) -> None:
        """That was the last one."""
        from vllm.config import set_current_vllm_config

        layerwise, model = self._layerwise()
        with set_current_vllm_config(self.vllm_config):
            layerwise.finalize_layerwise_reload(model, self.vllm_config.model_config)
        self._pack_head()

    def _layerwise(self) -> tuple[Any, Any]:
        from vllm.model_executor.model_loader.reload import layerwise

        return layerwise, self.model_runner.get_model()

    def _pack_head(self) -> None:
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        head = getattr(head, "base_layer", head)  # inside an adapter
        tied = self.vllm_config.model_config.hf_text_config.tie_word_embeddings
        if tied and head is not None and head.weight.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)
