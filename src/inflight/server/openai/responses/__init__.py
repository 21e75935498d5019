"""/v1/responses: schema, translation into a conversation, answers, and its entry."""

from inflight.server.common.endpoint import Endpoint
from inflight.server.openai.responses.answers import ResponsesSerializer
from inflight.server.openai.responses.schema import PREFIX, RESPONSES, Response
from inflight.server.openai.responses.translation import FIELD_NAMES, prepare

RESPONSES_ENDPOINT = Endpoint(
    name="responses",
    path="/v1/responses",
    body=RESPONSES,
    prepare=prepare,
    result=Response,
    serializer=ResponsesSerializer,
    prompt_field="input",
    call_prefix=PREFIX,
    field_names=FIELD_NAMES,
    is_stored=True,
    operation="responses",
    about="Answer a conversation of items. OpenAI's Responses API.",
)
