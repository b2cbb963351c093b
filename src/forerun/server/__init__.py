"""An OpenAI-compatible server over one engine.

The way of a request, and what a front adds to it:

```
body of a front ─► ChatBody ─► chat.open_answer ─► EngineRequests ─► EngineService.submit ─► Job
                                                                     the engine's thread      │
client ◄─ the front's form ◄─ Piece(text, reasoning, tool calls, end) ◄─ Answer.pieces ◄─ Updates of rounds
```

- `service.EngineService` runs the engine's loop in a thread of its own. A `Job` is what one body asked for:
  one or more `EngineRequest`s and the updates of their rounds. Leaving its block cancels what still runs.
- `chat` is the core that all chat fronts share: it makes engine requests of a `ChatBody` (OpenAI's form, to
  which other fronts translate) and turns updates into `Piece`s: text, reasoning, tool calls, the end with its
  counts. Nothing in it knows a wire format.
- A front is one file with a function `routes(state) -> APIRouter`: it translates its body, renders
  pieces, and is listed in `app.FRONTS`. Its errors are `ApiError`s; `errors.ENVELOPES` holds the form of
  each front by the beginning of its paths.
"""
