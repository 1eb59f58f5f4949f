#include "samba/verify/model_record.h"

#include <limits>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/sha256.h"
#include "samba/verify/schema.h"
#include "samba/verify/slices.h"
#include "samba/verify/state_pieces.h"

namespace samba::verify {
namespace {

using nlohmann::json;

constexpr Index kValues = 32;  // kept of each result, evenly spread

json result_of(const std::string& name, const Array& array) {
  json values = json::array();
  const Index step = std::max<Index>(1, array.size() / kValues);
  for (Index i = 0; i < array.size(); i += step) {
    values.push_back({i, bits_text(array.floats()[static_cast<std::size_t>(i)])});
  }
  return {{"name", name}, {"shape", array.shape()}, {"sha256", sha256_of(array)}, {"values", std::move(values)}};
}

class ResultRecorder final : public StageRecorder {
 public:
  ResultRecorder(Executor& executor, json& results) : executor_(executor), results_(results) {}
  void record(std::string_view name, const Shape& shape, const float* device) override {
    Array host = Array::zeros(shape);
    if (host.byte_size() > 0) executor_.memory().copy_to_host(host.data(), device, host.byte_size());
    results_.push_back(result_of(std::string(name), host));
  }

 private:
  Executor& executor_;
  json& results_;
};

json record_prompt(SambaStack& stack, const std::vector<std::int32_t>& ids, Index decode) {
  json results = json::array();
  const Index length = static_cast<Index>(ids.size());
  const auto state = stack.allocate_state(1, length + decode);
  ResultRecorder recorder(stack.executor(), results);
  stack.set_stage_recorder(&recorder);
  Array logits = stack.forward(token_array(1, length, ids), *state);
  stack.set_stage_recorder(nullptr);
  for (std::size_t layer = 0; layer < state->layers(); ++layer) {
    for (const auto& [piece, array] : held_pieces(state->layer(layer))) {
      if (array.dtype() == DType::float32) {
        results.push_back(result_of("layer" + std::to_string(layer) + " state " + piece, array));
      }
    }
  }
  std::vector<std::int32_t> tokens;
  Array last = slice(logits, 1, length - 1, length);
  for (Index i = 0; i < decode; ++i) {
    tokens.push_back(static_cast<std::int32_t>(argmax(last.floats())));
    if (i + 1 == decode) break;
    last = stack.step(token_array(1, 1, {&tokens.back(), 1}), *state);
    results.push_back(result_of("logits behind token " + std::to_string(i), last));
  }
  return {{"ids", ids}, {"tokens", tokens}, {"results", std::move(results)}};
}

// The first kept value that differs.
std::string value_difference(const json& got, const json& want) {
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (got[i] == want[i]) continue;
    const float a = float_from_bits_text(got[i].at(1)), b = float_from_bits_text(want[i].at(1));
    const Index at = want[i].at(0).get<Index>();
    const auto difference = first_difference("", {DType::float32, {1}, &a}, {DType::float32, {1}, &b});
    const std::string values = difference ? difference->detail : "";
    const std::size_t from = values.find("got"), to = values.find("; ");
    return "; at " + std::to_string(at) + ": " + (difference ? values.substr(from, to - from) : "equal");
  }
  return "; none of the " + std::to_string(want.size()) + " values kept of it";
}

void compare_prompt(const json& got, const json& want, const std::string& where, RecordComparison& comparison) {
  const auto count = [&](bool equal, const std::string& line) {
    ++(equal ? comparison.equal : comparison.different);
    if (!equal) comparison.lines.push_back(where + line);
  };
  const json& mine = got.at("results");
  const json& theirs = want.at("results");
  if (mine.size() != theirs.size()) {
    count(false, ": " + std::to_string(mine.size()) + " results, recorded are " + std::to_string(theirs.size()));
  }
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    const std::string name = theirs[i].at("name");
    const bool equal = mine[i].at("name") == theirs[i]["name"] && mine[i].at("shape") == theirs[i].at("shape") &&
                       mine[i].at("sha256") == theirs[i].at("sha256");
    count(equal, ", " + name + ": another digest" + value_difference(mine[i].at("values"), theirs[i].at("values")));
  }
  count(got.at("tokens") == want.at("tokens"),
        ", tokens: got " + got.at("tokens").dump() + ", recorded " + want.at("tokens").dump());
}

}  // namespace

std::string weights_sha256(const SambaStack& stack) {
  Sha256 hash;
  const WeightMap weights = stack.stored_weights();
  for (const auto& [name, array] : stored_arrays(ConstWeightMap(weights))) {
    hash.update(name + " " + std::string(dtype_name(array.dtype)) + " " + shape_text(array.shape) + "\n");
    hash.update(array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
  }
  return hash.finish_hex();
}

nlohmann::json record_model(SambaStack& stack, const RecordRequest& request) {
  json record = {{"schema", kRecordSchema},
                 {"weights", weights_sha256(stack)},
                 {"profile", profile_name(stack.config())},
                 {"prompts", json::array()}};
  for (const std::vector<std::int32_t>& ids : request.prompts) {
    record["prompts"].push_back(record_prompt(stack, ids, request.decode));
  }
  return record;
}

RecordRequest request_of(const nlohmann::json& record) {
  try {
    if (record.at("schema") != kRecordSchema) refuse_corrupt("record", "not a " + std::string(kRecordSchema));
    RecordRequest request;
    request.decode = 0;
    for (const json& prompt : record.at("prompts")) {
      for (const json& id : prompt.at("ids")) {
        if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
          refuse_corrupt("record", "a prompt holds an id that is no token: " + shown(id));
        }
      }
      request.prompts.push_back(prompt.at("ids").get<std::vector<std::int32_t>>());
      request.decode = std::max(request.decode, static_cast<Index>(prompt.at("tokens").size()));
      for (const json& result : prompt.at("results")) {
        for (const char* key : {"name", "shape", "sha256", "values"}) result.at(key);
      }
    }
    if (request.prompts.empty()) refuse_corrupt("record", "a record without a prompt");
    record.at("weights").get<std::string>();
    return request;
  } catch (const json::exception& error) {
    refuse_corrupt("record", std::string("not a record of samba verify --record: ") + error.what());
  }
}

namespace {

RecordComparison compare_parts(const nlohmann::json& got, const nlohmann::json& want) {
  RecordComparison comparison;
  const bool same_weights = got.at("weights") == want.at("weights");
  ++(same_weights ? comparison.equal : comparison.different);
  if (!same_weights) {
    comparison.lines.push_back("the weights are others: SHA-256 " + got.at("weights").get<std::string>() +
                               ", recorded " + want.at("weights").get<std::string>());
  }
  for (std::size_t i = 0; i < want.at("prompts").size(); ++i) {
    compare_prompt(got.at("prompts").at(i), want["prompts"][i], "prompt " + std::to_string(i), comparison);
  }
  return comparison;
}

}  // namespace

RecordComparison compare_records(const nlohmann::json& got, const nlohmann::json& want) {
  try {
    return compare_parts(got, want);
  } catch (const json::exception& error) {
    refuse_corrupt("record", std::string("not a record of samba verify --record: ") + error.what());
  }
}

}  // namespace samba::verify
