// The built-in suites: which cases run on what, what is counted, and that a difference is found and explained.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "command.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/formats/safetensors.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"
#include "samba/verify/hint.h"
#include "samba/verify/suites.h"

namespace samba {
namespace {

using nlohmann::json;

const Path kGolden = SAMBA_GOLDEN_DIR;

std::string last_line(const std::string& text) {
  const std::string lines = text.substr(0, text.find_last_not_of('\n') + 1);
  return lines.substr(lines.rfind('\n') + 1);
}

verify::PlanRequest request_for(std::vector<std::string> devices, std::vector<std::string> sets, int cores) {
  verify::PlanRequest request;
  request.devices = std::move(devices);
  request.instruction_sets = std::move(sets);
  request.cores = cores;
  return request;
}

// A linear layer of the case, and what it gives when its sum is made by another rule.
struct Linear {
  Array a, weight, want, got;
  Linear(Index rows, Index columns, Index k) {
    a = Array::zeros({rows, k});
    weight = Array::zeros({columns, k});
    want = Array::zeros({rows, columns});
    got = Array::zeros({rows, columns});
    for (std::size_t i = 0; i < a.floats().size(); ++i) a.floats()[i] = 0.37F * static_cast<float>(i * 7 % 31) - 5.3F;
    for (std::size_t i = 0; i < weight.floats().size(); ++i) {
      weight.floats()[i] = 0.113F * static_cast<float>(i * 11 % 47) - 2.7F;
    }
  }
  template <class Rule>
  void fill(Array& out, Rule&& rule) {
    const Index k = a.shape()[1], columns = weight.shape()[0];
    for (Index i = 0; i < out.size(); ++i) {
      const float* x = a.floats().data() + i / columns * k;
      const float* w = weight.floats().data() + i % columns * k;
      out.floats()[static_cast<std::size_t>(i)] = rule(k, x, w);
    }
  }
  std::string hint() {
    fill(want, [](Index k, const float* x, const float* w) {
      return dot(
          k, [x](Index i) { return x[i]; }, [w](Index i) { return w[i]; });
    });
    auto difference = verify::first_difference("out.c", got, want);
    REQUIRE(difference.has_value());
    difference->got_values = std::make_shared<Array>(got);
    auto tensors = std::make_shared<ArrayMap>();
    tensors->emplace("in.a", a);
    tensors->emplace("w.weight", weight);
    tensors->emplace("out.c", want);
    verify::TensorSet set;
    set.add(tensors);
    return verify::divergence_hint(*difference, set);
  }
};

}  // namespace

TEST_CASE("the plan covers every device, every instruction set, and 1, 2 and all threads") {
  const auto plan = verify::plan_of(request_for({"cpu", "reference"}, {"avx512", "avx2", "scalar"}, 8));
  std::set<std::string> names;
  for (const verify::Configuration& one : plan) names.insert(one.name());
  for (const char* set : {"avx512", "avx2", "scalar"}) {
    for (const char* threads : {"1 thread", "2 threads", "8 threads"}) {
      CHECK(names.contains("cpu " + std::string(set) + ", " + threads));
    }
  }
  CHECK(names.contains("reference, 1 thread"));
  CHECK(plan[0].depth == verify::Depth::whole);
  CHECK(names.size() == 10);
}

TEST_CASE("a depth leaves out what it says and a deeper one holds all of a shallower") {
  const std::pair<const char*, const char*> cases[] = {{"samba/tutorial", "tutorial"},
                                                       {"samba_train/x", "samba_train"},
                                                       {"columns/mamba3[base].batchscale", "columns"},
                                                       {"columns/mamba3[odd].train", "columns"},
                                                       {"columns/mamba3[base].train", "columns"},
                                                       {"mamba3/hash", "hash_block"},
                                                       {"core/gemm", "gemm"}};
  const verify::Depth depths[] = {verify::Depth::small, verify::Depth::moderate, verify::Depth::most,
                                  verify::Depth::whole};
  std::vector<std::size_t> counts;
  for (const verify::Depth depth : depths) {
    counts.push_back(0);
    for (const auto& [id, kind] : cases) counts.back() += verify::belongs(depth, id, kind) ? 1 : 0;
  }
  CHECK(counts == std::vector<std::size_t>{2, 4, 6, 7});
}

TEST_CASE("an unknown suite is refused with the nearest known one") {
  const auto suites = verify::builtin_suites(kGolden);
  CHECK(suites.size() == 13);
  const std::vector<std::string> names = {"colums"};
  CHECK_THROWS_WITH(verify::chosen_suites(suites, names), Catch::Contains("did you mean columns?"));
}

TEST_CASE("samba verify SUITE runs it everywhere, closes with the counts, and says what it did not cover") {
  const CommandResult result = samba_command({"verify", "mlp", "lowbit", "--progress", "never"});
  CHECK(result.code == 0);
  CHECK(result.out.find("cpu avx2, 2 threads") != std::string::npos);
  CHECK(result.out.find("reference, 1 thread") != std::string::npos);
  const bool cuda_ran = result.out.find("cuda, 1 thread") != std::string::npos;
  CHECK((result.out.find("not covered: device cuda: ") != std::string::npos) == !cuda_ran);
  CHECK(last_line(result.out) == "cases: 27 equal, 0 different, 0 not applicable");

  const CommandResult as_json = samba_command({"verify", "mlp", "--quick", "--device", "cpu", "--json"});
  CHECK(as_json.code == 0);
  const json report = json::parse(as_json.out);
  CHECK(report.at("equal") == 15);
  CHECK(report.at("machine").at("cores").get<int>() >= 1);
  std::set<std::string> digests;  // of one case, on every configuration
  for (const json& run : report.at("configurations")) digests.insert(run.at("cases").at(0).at("digest"));
  CHECK(digests.size() == 1);
}

TEST_CASE("a column is counted with the records of other machines that agree, a missing one is not") {
  const CommandResult result = samba_command(
      {"verify", "columns", "--quick", "--only", "gemm-pinned", "--device", "cpu", "--threads", "1", "--json"});
  CHECK(result.code == 0);
  const json report = json::parse(result.out);
  const json& published = report.at("published_digests");
  CHECK(published.at("reproduced").get<int>() == report.at("equal").get<int>());
  for (const char* device : {"apple", "nvidia", "amd", "cpu"}) {
    CHECK(published.at("records_that_agree").at(device) == published.at("reproduced"));
  }
}

TEST_CASE("a wrong record makes the suite different, on every configuration") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "core");
  SafetensorsFile file = read_safetensors(kGolden / "core/linear_5x7x9.safetensors");
  float& value = file.tensors.at("out.c").floats()[9];
  value = from_bits(to_bits(value) ^ 1U);
  ConstArrayMap tensors;
  for (const auto& [name, array] : file.tensors) tensors[name] = array.view();
  write_safetensors(folder / "core/wrong.safetensors", tensors, file.metadata);
  const auto suites = verify::builtin_suites(folder.path());
  const auto plan = verify::plan_of(request_for({"cpu", "reference"}, {instruction_sets()[0]}, 2));
  const auto make = [](const verify::Configuration& one) {
    return make_executor(one.device, {one.threads, one.instruction_set});
  };
  const verify::SuitesReport report = verify::run_suites(suites, plan, make, {}, {});
  CHECK_FALSE(report.passed());
  CHECK(verify::closing_line(report) == "cases: 0 equal, 1 different, 0 not applicable");
  for (const verify::ConfigurationRun& run : report.runs) {
    CHECK(run.report.results.at(0).first->name == "out.c");
    CHECK(!run.report.results.at(0).first->hint.empty());
  }
}

TEST_CASE("the hint names two roundings in place of a fused step") {
  Linear linear(3, 5, 200);
  linear.fill(linear.got, [](Index k, const float* x, const float* w) {
    TreeFold tree;
    for (Index first = 0; first < k; first += kLeaf) {
      float acc = 0.0F;
      for (Index i = first; i < std::min(k, first + kLeaf); ++i) acc = add(mul(x[i], w[i]), acc);
      tree.push(acc);
    }
    return tree.finish();
  });
  CHECK(linear.hint().find("two roundings where a fused step belongs") != std::string::npos);
}

TEST_CASE("the hint names a wrong leaf and another order of a sum") {
  Linear one_chain(3, 5, 200);
  one_chain.fill(one_chain.got, [](Index k, const float* x, const float* w) {
    float acc = 0.0F;
    for (Index i = 0; i < k; ++i) acc = mad(x[i], w[i], acc);
    return acc;
  });
  CHECK(one_chain.hint().find("wrong leaf: one chain over all terms") != std::string::npos);

  Linear lanes(3, 5, 100);
  lanes.fill(lanes.got, [](Index k, const float* x, const float* w) {
    float sums[4] = {};
    for (Index i = 0; i < k; ++i) sums[i % 4] = mad(x[i], w[i], sums[i % 4]);
    return add(add(sums[0], sums[2]), add(sums[1], sums[3]));
  });
  CHECK(lanes.hint().find("4 partial sums side by side") != std::string::npos);
}

TEST_CASE("the hint names a missing flush") {
  Linear linear(2, 3, 4);
  for (float& value : linear.a.floats()) value = 0x1p-70F;
  for (float& value : linear.weight.floats()) value = 0x1.8p-60F;
  linear.fill(linear.got, [](Index k, const float* x, const float* w) {
    float acc = 0.0F;
    for (Index i = 0; i < k; ++i) acc = fma(x[i], w[i], acc);
    return acc;
  });
  CHECK(linear.hint().find("was not flushed") != std::string::npos);
}

}  // namespace samba
