"""An OpenAI-compatible server over one engine.

The way of a request, and what a front adds to it:

```
body of a front ─► ChatBody ─► chat.answer ─► EngineRequests ─► EngineService.submit ─► AnswerJob
                                                                     the engine's thread        │
client ◄─ the front's form ◄─ Piece(text, reasoning, tool calls, end) ◄─ Answer.pieces ◄─ Updates of rounds
```

- `service.EngineService` runs the engine's loop in a thread of its own. An `AnswerJob` is what one body asked
  for: one or more `EngineRequest`s and the updates of their rounds. `end` cancels what still runs.
- `chat.answer` is the core that all chat fronts share: it makes engine requests of a `ChatBody` (OpenAI's
  form, to which other fronts translate) and turns updates into `Piece`s: text, reasoning, tool calls, the end
  with its counts. A splitter (`answers.Splitter`) finds the parts; nothing here knows a wire format.
- A front is one file with a function `add_routes(app, state)`, listed in `app.FRONTS`: it translates its
  body and gives `chat.answer` a `respond.Form`, which writes an answer's pieces as an object or as events.
  Errors are `ApiError`s; `errors.envelope` has their form by the beginning of the path.
- A constraint is a `mask` among the sampling parameters of an engine request, one for each choice
  (`constraints.GrammarMask`). Calls of tools are an entry of `tools.FORMATS`: how a family writes them, as a
  grammar for forced ones and for `ToolCallReader`.
"""
