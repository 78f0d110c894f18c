"""uvicorn's flow control, changed."""

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Flow(FlowControl):
    """uvicorn's, but nothing is read while requests sent ahead wait: all of them would be kept."""

    def __init__(self, connection: HttpToolsProtocol) -> None:
        super().__init__(connection.transport)
        self._pipeline = connection.pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()
