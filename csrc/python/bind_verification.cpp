// Verification: decisions, and a whole batch from logits.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "forerun/thread_pool.h"
#include "forerun/verification.h"
#include "row_arguments.h"

namespace forerun::cpu {
namespace {

using Batch = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using WarpArguments = std::tuple<double, std::int64_t, double, double>;

// A draft and the rows to verify it against, checked and of type T.
template <class T>
struct Checked {
  Tree tree;
  Rows<T> rows;

  Checked(const Ids& tokens, const Ids& parents, const Matrix& target,
          const std::optional<Matrix>& draft)
      : tree{tokens.data(), parents.data(), static_cast<std::int64_t>(tokens.size())},
        rows{data<T>(target), draft ? data<T>(*draft) : nullptr, vocab_of(target)} {
    if (parents.size() != tokens.size()) throw std::invalid_argument("each node has one parent");
    check_shape("target rows", target, tree.size + 1, rows.vocab);
    if (!draft) return;
    check_shape("draft rows", *draft, tree.size, rows.vocab);
    check_same_type(target, *draft);
  }
};

using Decided = std::tuple<std::vector<double>, Ids, Ids, std::int64_t>;

Rule rule_of(const std::string& name) {
  if (name == "token") return Rule::token;
  if (name == "traversal") return Rule::traversal;
  if (name == "coupled") return Rule::coupled;
  throw std::invalid_argument("the kernels know no rule " + name);
}

Decided decide_draft(const std::string& name, const Ids& tokens, const Ids& parents,
                     const Matrix& target, const std::optional<Matrix>& draft, const Matrix& emit) {
  const Rule rule = rule_of(name);
  check_shape("emit", emit, rows_of(target), vocab_of(target));
  check_same_type(target, emit);
  return by_type(target, [&](auto zero) {
    using T = decltype(zero);
    const Checked<T> checked(tokens, parents, target, draft);
    const Scratch<T> scratch(scratches<T>());
    const auto decision = decide(rule, checked.tree, checked.rows, data<T>(emit), *scratch);
    return Decided{{decision.accept.begin(), decision.accept.end()},
                   decision.on_accept,
                   decision.on_reject,
                   decision.start};
  });
}

// One request's draft as Python hands it over; it keeps the rows that the tokens were drawn from.
struct Request {
  Rule rule;
  Ids tokens;
  Ids parents;
  std::optional<Matrix> draft;
  Warp warp;
  std::uint64_t seed;
  std::int64_t committed;

  Request(const std::string& name, Ids token_ids, Ids parent_nodes, std::optional<Matrix> rows,
          const WarpArguments& warp_arguments, std::uint64_t seed, std::int64_t committed)
      : rule(rule_of(name)),
        tokens(std::move(token_ids)),
        parents(std::move(parent_nodes)),
        draft(std::move(rows)),
        seed(seed),
        committed(committed) {
    std::tie(warp.temperature, warp.top_k, warp.top_p, warp.min_p) = warp_arguments;
    if (parents.size() != tokens.size()) throw std::invalid_argument("each node has one parent");
    if (draft) check_shape("draft rows", *draft, size(), vocab_of(*draft));
  }

  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }

  template <class T>
  DraftToVerify<T> against(const T* logits, const Batch& all) const {
    if (size() >= static_cast<std::int64_t>(all.shape(1))) {
      throw std::invalid_argument(
          "there must be a row of logits for each token of a draft and one more");
    }
    if (draft && (draft->dtype() != all.dtype() || draft->shape(1) != all.shape(2))) {
      throw std::invalid_argument("draft rows must have the type and the vocabulary of the logits");
    }
    const T* rows = draft ? data<T>(*draft) : nullptr;
    return {rule, Tree{tokens.data(), parents.data(), size()}, logits, rows, warp, seed, committed};
  }
};

// (end, token), or the exception that is this request's alone.
nb::object result_of(const Answer& answer, const nb::object& row_error) {
  switch (answer.fault) {
    case Fault::none: return nb::make_tuple(answer.outcome.end, answer.outcome.token);
    case Fault::row: return row_error(answer.reason);
    case Fault::draft: return nb::borrow(PyExc_ValueError)(answer.reason);
  }
  return nb::none();
}

template <class T>
std::vector<Answer> verify_all(const std::vector<const Request*>& requests, const Batch& logits,
                               ThreadPool* pool) {
  // Waking threads for less costs more than it saves.
  constexpr std::size_t kLeastForThreads = std::size_t{1} << 16;
  const auto vocab = static_cast<std::int64_t>(logits.shape(2));
  const std::size_t rows = logits.shape(1) * logits.shape(2);
  std::vector<DraftToVerify<T>> drafts;
  const T* next = static_cast<const T*>(logits.data());
  for (const Request* request : requests) {
    if (request == nullptr) throw std::invalid_argument("drafts are given for all requests");
    drafts.push_back(request->against(next, logits));
    next += rows;
  }
  const nb::gil_scoped_release released;
  if (pool == nullptr || requests.size() * rows < kLeastForThreads) {
    return verify_batch<T>(drafts, vocab, nullptr, scratches<T>());
  }
  const Forward forward(*pool);
  return verify_batch<T>(drafts, vocab, pool, scratches<T>());
}

nb::list verify_requests(const std::vector<const Request*>& requests, const Batch& logits,
                         ThreadPool* pool, const nb::object& row_error) {
  if (logits.shape(0) != requests.size() || logits.shape(2) == 0) {
    throw std::invalid_argument("logits must be [B, n, V] with a row for each draft");
  }
  const bool is_float = logits.dtype() == nb::dtype<float>();
  if (!is_float && logits.dtype() != nb::dtype<double>()) {
    throw std::invalid_argument("rows are float32 or float64");
  }
  const auto answers = is_float ? verify_all<float>(requests, logits, pool)
                                : verify_all<double>(requests, logits, pool);
  nb::list results;
  for (const Answer& answer : answers) results.append(result_of(answer, row_error));
  return results;
}

}  // namespace

void bind_verification(nb::module_& m) {
  nb::class_<Request>(m, "DraftToVerify", "The draft of one request and how it is verified.")
      .def(nb::init<const std::string&, Ids, Ids, std::optional<Matrix>, const WarpArguments&,
                    std::uint64_t, std::int64_t>(),
           nb::arg("rule"), nb::arg("tokens"), nb::arg("parents"), nb::arg("draft").none(),
           nb::arg("warp"), nb::arg("seed"), nb::arg("committed"));
  const nb::object row_error = m.attr("RowError");
  m.def(
      "verify_batch",
      [row_error](const std::vector<const Request*>& drafts, const Batch& logits,
                  ThreadPool* pool) { return verify_requests(drafts, logits, pool, row_error); },
      nb::arg("drafts"), nb::arg("logits"), nb::arg("pool").none(),
      "Warp logits [B, n, V] and verify: the end of each path and the token after it, or the error "
      "of that "
      "request alone.");
  m.def("decide", decide_draft, nb::arg("rule"), nb::arg("tokens"), nb::arg("parents"),
        nb::arg("target"), nb::arg("draft").none(), nb::arg("emit").noconvert(),
        "accept, on_accept, on_reject, start");
}

}  // namespace forerun::cpu
