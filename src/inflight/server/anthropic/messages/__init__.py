"""/v1/messages and /v1/messages/count_tokens: schema, translation into a conversation, answers, and their entries."""

from inflight.server.anthropic.messages.answers import MessagesSerializer
from inflight.server.anthropic.messages.conversation import FIELD_NAMES, prepare, prepare_count
from inflight.server.anthropic.messages.schema import COUNT_TOKENS, MESSAGES, CountedTokens, MessagesAnswer
from inflight.server.common.endpoint import Endpoint
from inflight.server.errors import MESSAGES_PATH

MESSAGES_ENDPOINT = Endpoint(
    name="messages",
    path=MESSAGES_PATH,
    body=MESSAGES,
    prepare=prepare,
    result=MessagesAnswer,
    serializer=MessagesSerializer,
    prompt_field="messages",
    call_prefix="msg_",
    field_names=FIELD_NAMES,
    operation="messages",
    about="Answer a conversation of blocks. Anthropic's Messages API.",
)
COUNT_ENDPOINT = Endpoint(
    name="count_tokens",
    path=f"{MESSAGES_PATH}/count_tokens",
    body=COUNT_TOKENS,
    prepare=prepare_count,
    result=CountedTokens,
    field_names=FIELD_NAMES,
    operation="count_tokens",
    about="How many tokens the prompt of such a conversation has.",
)
