"""Every field of a request to vLLM: whether it is honoured here, has no effect on a reader, or is refused.

The fields are those of vLLM's ChatCompletionRequest (vllm/entrypoints/openai/chat_completion/protocol.py) and
its older `guided_*`. As there, a field that is none of them is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

HONOURED = frozenset(
    (
        *("messages", "model", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
        *("response_format", "structured_outputs", "guided_json", "guided_choice", "guided_regex"),
        *("stop", "include_stop_str_in_output", "tools", "tool_choice", "chat_template_kwargs"),
    )
)
# They steer what a model makes up, how it is prompted, or how its server works: a page says the same.
HARMLESS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
        *("repetition_penalty", "length_penalty", "use_beam_search", "repetition_detection"),
        *("reasoning_effort", "thinking_token_budget", "include_reasoning", "parallel_tool_calls"),
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "stream_interval"),
        *("truncate_prompt_tokens", "truncation_side", "add_generation_prompt", "add_special_tokens"),
        *("documents", "chat_template", "media_io_kwargs", "mm_processor_kwargs", "vllm_xargs"),
        *("user", "priority", "request_id", "session_id", "cache_salt", "guided_decoding_backend"),
        *("guided_whitespace_pattern", "return_tokens_as_token_ids", "routed_experts_prompt_start"),
        *("return_mm_kwargs", "return_token_offsets"),
    )
)
_NO_PROBABILITIES = "the embedded engine reads letters, and has no probabilities of tokens"
_NO_VOCABULARY = "the embedded engine has no vocabulary of tokens"
_FROM_PAGE = "the embedded engine writes what stands on the page, and no more"
_NO_GRAMMAR = "the embedded engine follows a JSON schema, a regular expression or a list of choices"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"), _NO_PROBABILITIES),
    **dict.fromkeys(
        ("logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "return_token_ids"), _NO_VOCABULARY
    ),
    **dict.fromkeys(("min_tokens", "echo", "continue_final_message", "watermarking"), _FROM_PAGE),
    "return_prompt_text": "the embedded engine has no chat template",
    "guided_grammar": _NO_GRAMMAR,
    # The gateway itself refuses them; so does this engine.
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params"), "the embedded engine has no peers"),
    # Those of the Responses API.
    "include": _NO_PROBABILITIES,
}
# What asks for nothing.
_UNSET = frozenset((b"null", b"false", b"0", b"0.0", b"[]", b"{}", b'""'))
# Of `include`, what has no part in a reader's answers is as if it were not there.
_ASKED_OF_INCLUDE = b"logprobs"


def check_fields(members: Mapping[str, msgspec.Raw]) -> None:
    """Refuse what would change the answer and cannot be done.

    Raises:
        BadRequest: there is such a field; `param` names it.
    """
    for name in members.keys() & REFUSED.keys():
        value = bytes(members[name]).strip()
        if value in _UNSET or (name == "include" and _ASKED_OF_INCLUDE not in value):
            continue
        raise BadRequest(f"`{name}`: {REFUSED[name]}", param=name, code="unsupported_parameter")
