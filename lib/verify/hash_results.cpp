#include "samba/verify/hash_results.h"

#include "samba/numerics/generator.h"
#include "samba/verify/block_under_test.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

std::string first_values(ConstArray array) {
  if (array.dtype != DType::float32) return "";
  std::string text;
  for (Index i = 0; i < std::min<Index>(array.size(), 4); ++i) {
    text += (i == 0 ? "" : " ") + bits_text(array.floats()[i]);
  }
  return "; first values " + text;
}

Array draw_one(RunContext& run, const json& draw, std::uint64_t seed, std::uint32_t stream) {
  const auto number = [&](const char* name) { return static_cast<float>(number_of(draw.at(name))); };
  const auto shape = draw.at("shape").get<Shape>();
  const Index n = element_count(shape);
  DeviceFloats out(run.executor, n);
  const std::string dist = draw.at("dist");
  RandomKernels& kernels = run.executor.random();
  if (dist == "normal") {
    kernels.normal(seed, stream, n, number("mean"), number("sd"), out);
  } else if (dist == "uniform") {
    kernels.uniform(seed, stream, n, number("low"), number("high"), out);
  } else if (dist == "kaiming_uniform") {
    const float bound = kaiming_uniform_bound(draw.at("fan_in").get<Index>());
    kernels.uniform(seed, stream, n, -bound, bound, out);
  } else {
    refuse_corrupt("case", "unknown distribution '" + dist + "'");
  }
  return out.array(shape);
}

}  // namespace

void check_digest(Checker& check, const std::string& name, ConstArray got, const json& expected) {
  const std::string dtype = expected.value("dtype", "float32");
  check.text(name + " dtype", std::string(dtype_name(got.dtype)), dtype);
  const bool shape = got.shape == expected.at("shape").get<Shape>();
  check.holds(name + " shape", shape, "got " + shape_text(got.shape) + ", want " + expected.at("shape").dump());
  const std::string digest = sha256_of(got);
  std::string otherwise = "SHA-256 " + digest + ", want " + expected.at("sha256").get<std::string>();
  otherwise += first_values(std::move(got));
  if (expected.contains("first_bits")) otherwise += ", want " + expected["first_bits"].dump();
  check.holds(name, digest == expected.at("sha256"), otherwise);
}

HashResults::HashResults(RunContext& run) : run_(run) {
  for (const json& result : run.body().at("results")) expected_[result.at("name")] = &result;
}

void HashResults::add(const std::string& name, Array got) {
  const auto found = expected_.find(name);
  if (found == expected_.end()) refuse_corrupt("case", "the case has no result '" + name + "'");
  run_.note(name, got);
  check_digest(run_.check, name, got, *found->second);
  made_[name] = std::move(got);
}

const Array& HashResults::at(const std::string& name) const {
  const auto found = made_.find(name);
  if (found == made_.end()) refuse_corrupt("case", "the result '" + name + "' was not made yet");
  return found->second;
}

void HashResults::check_same_as(const json& call, const Array& got) {
  if (!call.contains("same_as")) return;
  const std::string other = call["same_as"];
  run_.check.array(call.at("y").get<std::string>() + " against " + other, got, cut_positions(call, at(other)));
}

void HashResults::check_complete() {
  for (const auto& [name, expected] : expected_) {
    run_.check.holds(name, made_.contains(name), "no call of the case made this result");
  }
}

ArrayMap draw_tensors(RunContext& run) {
  ArrayMap tensors;
  const auto seed = run.body().at("seed").get<std::uint64_t>();
  std::uint32_t stream = 0;
  for (const json& draw : run.body().at("draws")) {
    run.check.integer("stream of " + draw.at("name").get<std::string>(), stream, draw.at("stream").get<std::int64_t>());
    Array drawn = draw_one(run, draw, seed, stream++);
    run.check.sha256("draw " + draw.at("name").get<std::string>(), drawn, draw.at("sha256"));
    tensors[draw.at("name")] = std::move(drawn);
  }
  return tensors;
}

WeightMap drawn_weights(RunContext& run, const ArrayMap& drawn) {
  ConstArrayMap plain;
  for (const auto& [name, array] : drawn) {
    if (name.starts_with("w.")) plain[name.substr(2)] = array.view();
  }
  WeightMap weights = pack(plain, parse_weight_format(run.body().at("weight_format")));
  for (const json& draw : run.body().at("draws")) {
    if (!draw.contains("expanded_sha256")) continue;
    const std::string name = draw.at("name");
    run.check.sha256("expanded " + name, expand(weights.at(name.substr(2))), draw["expanded_sha256"]);
  }
  return weights;
}

void check_state_results(RunContext& run, HashResults& results, const std::string& where, const json& expected,
                         const ArrayMap& pieces, const std::map<std::string, Index>& counters) {
  for (const auto& [piece, name] : member_or_empty(expected, "pieces").items()) {
    const auto found = pieces.find(piece);
    run.check.holds(where + ": piece " + piece, found != pieces.end(), "the state has no piece of this name");
    if (found == pieces.end()) continue;
    const bool buffer = piece.starts_with("buffer_");
    const Index rows = buffer ? expected.at("buffered_tokens").get<Index>() : 0;
    results.add(name, buffer ? slice(found->second, 1, 0, rows) : copy_of(found->second));
  }
  check_counters(run.check, where, expected, counters);
}

Array cut_positions(const json& call, const Array& array) {
  if (!call.contains("positions")) return copy_of(array);
  return slice(array, 1, call["positions"].at(0).get<Index>(), call["positions"].at(1).get<Index>());
}

}  // namespace samba::verify
