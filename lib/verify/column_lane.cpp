// Lanes of published columns: inputs are views of two flat tensors, programs are calls, and what is compared are
// digests on which GPUs of three vendors and CPUs agree.
#include "samba/verify/column_lane.h"

#include "samba/model/loss.h"
#include "samba/train/accumulate.h"
#include "samba/verify/kinds.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

// The flat values of a view before "reshape" or "bytes".
std::vector<float> gather(const json& view, std::span<const float> source) {
  const auto shape = view.at("shape").get<Shape>();
  const Index count = element_count(shape);
  std::vector<Index> strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  if (view.contains("strides")) strides = view["strides"].get<std::vector<Index>>();
  const Index offset = view.value("offset", Index{0});
  const Index wrap = view.value("wrap", Index{0});
  std::vector<float> values(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    Index at = offset;
    Index rest = i;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      at += rest % shape[axis] * strides[axis];
      rest /= shape[axis];
    }
    if (wrap > 0) at %= wrap;
    if (at < 0 || at >= static_cast<Index>(source.size())) refuse_corrupt("case", "a view beyond its tensor");
    values[static_cast<std::size_t>(i)] = source[static_cast<std::size_t>(at)];
  }
  return values;
}

// The little-endian bytes of the values, each modulo `mod`, as token ids.
Array bytes_of(const std::vector<float>& values, const json& recipe) {
  Array ids(DType::int32, recipe.at("shape").get<Shape>());
  const auto mod = recipe.at("mod").get<std::int32_t>();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  if (ids.values<std::int32_t>().size() > values.size() * 4) refuse_corrupt("case", "a view with too few bytes");
  for (std::size_t i = 0; i < ids.values<std::int32_t>().size(); ++i) ids.values<std::int32_t>()[i] = bytes[i] % mod;
  return ids;
}

void pad(Array& array, const json& recipe) {
  const auto lengths = recipe.at("lengths").get<std::vector<Index>>();
  const Index length = array.shape().at(1);
  const Index width = array.size() / (array.shape()[0] * length);
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    const auto first = static_cast<std::size_t>((static_cast<Index>(row) * length + lengths[row]) * width);
    const auto end = static_cast<std::size_t>((static_cast<Index>(row) + 1) * length * width);
    for (std::size_t i = first; i < end; ++i) {
      if (array.dtype() == DType::int32) {
        array.values<std::int32_t>()[i] = recipe.at("value").get<std::int32_t>();
      } else {
        array.floats()[i] = static_cast<float>(number_of(recipe.at("value")));
      }
    }
  }
}

}  // namespace

Array evaluate_view(const json& view, const TensorSet& tensors) {
  const std::vector<float> values = gather(view, tensors.at(view.at("of")).floats());
  Array array;
  if (view.contains("bytes")) {
    array = bytes_of(values, view["bytes"]);
  } else {
    const auto shape = view.value("reshape", view.at("shape")).get<Shape>();
    array = Array::from_floats(shape, std::span(values).first(static_cast<std::size_t>(element_count(shape))));
  }
  if (view.contains("slice")) {
    for (std::size_t axis = 0; axis < view["slice"].size(); ++axis) {
      array = slice(array, axis, view["slice"][axis].at(0).get<Index>(), view["slice"][axis].at(1).get<Index>());
    }
  }
  if (view.contains("pad")) pad(array, view["pad"]);
  return array;
}

Lane::Lane(RunContext& run) : run_(run) {}

const json& Lane::programs() const {
  return run_.body().at(cell().contains("programs") ? cell()["programs"].get<std::string>() : "programs");
}

const Array& Lane::value(const std::string& name) {
  if (const auto found = results_.find(name); found != results_.end()) return found->second;
  if (const auto found = inputs_.find(name); found != inputs_.end()) return found->second;
  const json& inputs = cell().at("inputs");
  if (!inputs.contains(name)) return run_.tensor(name);
  if (inputs[name].is_string()) return run_.tensor(inputs[name]);
  return inputs_[name] = evaluate_view(inputs[name], run_.test.tensors);
}

Array Lane::cut(const json& call, const Array& array) {
  Array part = copy_of(array);
  if (call.contains("rows")) {
    part = slice(part, 0, call["rows"].at(0).get<Index>(), call["rows"].at(1).get<Index>());
  }
  if (call.contains("positions")) {
    part = slice(part, 1, call["positions"].at(0).get<Index>(), call["positions"].at(1).get<Index>());
  }
  return part;
}

Array Lane::cut(const json& call, const char* key) { return cut(call, value(call.at(key))); }

void Lane::check_same_as(const json& call, const Array& outcome) {
  if (!call.contains("same_as")) return;
  const std::string other = call["same_as"];
  std::string where = call.at("op").get<std::string>() + " against " + other;
  for (const char* part : {"rows", "positions"}) {
    if (call.contains(part)) where += " " + std::string(part) + " " + call[part].dump();
  }
  run_.check.array(where, outcome, cut(call, result(other)));
}

const Array& Lane::result(const std::string& name) const {
  const auto found = results_.find(name);
  if (found == results_.end()) refuse_corrupt("case", "no call made the result '" + name + "'");
  return found->second;
}

void PieceSum::add(const std::string& name, ConstArray piece) { pieces_[name].push_back(copy_of(std::move(piece))); }

void PieceSum::check(Lane& lane, const json& same_as, const std::string& where) {
  for (const auto& [name, result] : same_as.items()) {
    const std::vector<Array>& pieces = pieces_.at(name);
    std::vector<Array> rows;
    rows.reserve(pieces.size());
    for (const Array& piece : pieces) rows.push_back(reshaped(piece, {1, piece.size()}));
    const Array sum = reshaped(accumulate(executor_, join(rows, 0)), pieces[0].shape());
    lane.run().check.array(where + " " + name, sum, lane.result(result));
  }
}

Array greedy_ids(const Array& logits) {
  const Index rows = logits.shape()[0];
  const auto vocab = static_cast<std::size_t>(logits.shape()[1]);
  Array ids(DType::int32, {rows, 1});
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    ids.values<std::int32_t>()[row] = static_cast<std::int32_t>(argmax(logits.floats().subspan(row * vocab, vocab)));
  }
  return ids;
}

void add_pair_results(Lane& lane, const json& call, const Array& prompts, const std::vector<Array>& logits,
                      const std::vector<Array>& ids) {
  std::vector<Array> rows;
  for (const Array& row : logits) rows.push_back(reshaped(row, {row.shape()[0], 1, row.shape()[1]}));
  Array all_logits = join(rows, 1);
  Array all_ids = join(ids, 1);
  const Index batch = all_ids.shape()[0], decode = all_ids.shape()[1];
  CrossEntropyOptions options;
  options.reduction = Reduction::none;
  const CrossEntropyResult loss =
      cross_entropy(lane.run().executor, reshaped(all_logits, {batch * decode, all_logits.shape()[2]}),
                    reshaped(all_ids, {batch * decode}), options);
  lane.add(call.at("prompts_out"), copy_of(prompts));
  lane.add(call.at("nll"), reshaped(loss.row_loss, {batch, decode}));
  lane.add(call.at("ids"), std::move(all_ids));
  lane.add(call.at("logits"), std::move(all_logits));
}

void run_column(RunContext& run) {
  Lane lane(run);
  const json& program = lane.programs().at(run.test.part);
  const std::string type = lane.model().at("type");
  std::unique_ptr<LaneBlock> block;
  std::unique_ptr<LaneStack> stack;
  std::unique_ptr<LaneMlp> mlp;
  if (type == "block") block = std::make_unique<LaneBlock>(lane);
  if (type == "stack") stack = std::make_unique<LaneStack>(lane);
  if (type == "mlp") mlp = std::make_unique<LaneMlp>(lane);
  const auto perform = [&](const json& calls) {
    std::size_t number = 0;
    for (const json& call : calls) {
      run.begin_call("calls/" + std::to_string(number++) + " " + call.at("op").get<std::string>());
      if (call_function(lane, call)) continue;
      if (block) {
        block->call(call);
      } else if (stack) {
        stack->call(call);
      } else if (mlp) {
        mlp->call(call);
      } else {
        refuse_corrupt("case", "functions have no op " + call.at("op").dump());
      }
    }
  };
  if (program.contains("after")) {
    perform(lane.programs().at(program["after"].get<std::string>()).at("calls"));
    lane.forget_results();
  }
  perform(program.at("calls"));
  check_digests(lane, program.at("digest"));
}

}  // namespace samba::verify
