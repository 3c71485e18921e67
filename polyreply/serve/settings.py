"""What a server allows: limits on single requests, on the queue and on the batch."""

from pydantic import BaseModel, ConfigDict, Field


class ServeSettings(BaseModel):
    """The settings of `polyreply serve` besides model and address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("", description="What the API calls the model; by default the last part of its path.")
    max_batch: int = Field(64, ge=1, description="Most contexts that are decoded together; 1 switches batching off.")
    max_queue: int = Field(256, ge=1, description="Most contexts that wait; above it requests get 429.")
    max_contexts: int = Field(64, ge=1, description="Most contexts of one request.")
    max_tokens: int = Field(4096, ge=1, description="Most tokens of one request: n · max_tokens, over all contexts.")
    max_characters: int = Field(50_000, ge=1, description="Most characters of one context.")
    max_body_bytes: int = Field(1 << 20, ge=1024, description="Most bytes of a request's body.")
    seconds: float = Field(60.0, gt=0, description="Most seconds from a request's arrival to its last token.")
    log_texts: bool = Field(False, description="Whether messages and replies are written to the log.")
    cors_origins: tuple[str, ...] = Field((), description="Other sites whose pages may use the API.")
    allowed_hosts: tuple[str, ...] = Field((), description="Further host names by which clients may call the server.")
