// samba bench: the rows that files define, their refusals, what a run says and writes. Nothing here asserts a time.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "command.h"
#include "samba/bench/bench.h"
#include "samba/bench/report.h"
#include "samba/core/error.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

const Path kShapes = Path(SAMBA_SOURCE_DIR) / "configs/bench";

std::vector<bench::Case> cases_from(const std::string& text, const std::vector<int>& threads = {1, 2}) {
  return bench::cases_of({{"rows.json", text}}, threads);
}

std::string refusal_of(const std::string& text) {
  try {
    cases_from(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::value);
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> names_of(const std::vector<bench::Case>& cases) { return bench::selected_rows(cases, {}); }

constexpr const char* kTinyShapes = R"({
  "models": {"tiny": {"repeat": 2, "config": {"vocab": 16, "d_model": 32, "layers": [
    {"kind": "transformer", "n_heads": 2, "intermediate": 48}, {"kind": "mamba3"}]}}},
  "rows": [
    {"kind": "gemm", "m": [1, 3], "n": [32], "k": [64]},
    {"kind": "packed", "m": [2], "n": [32], "k": [64]},
    {"kind": "fixed15", "m": [2], "n": [32], "k": [64]},
    {"kind": "prefill", "model": "tiny", "length": 8, "quick": true},
    {"kind": "decode", "model": "tiny", "position": 4, "tokens": 2},
    {"kind": "training", "model": "tiny", "rows": 2, "length": 8},
    {"kind": "identity", "model": "tiny", "length": 8},
    {"kind": "identity", "pass": "training", "model": "tiny", "rows": 1, "length": 8},
    {"kind": "block", "layer": {"kind": "mamba2"}, "d_model": 32, "length": 8},
    {"kind": "growth", "model": "tiny", "positions": [4, 20], "tokens": 2},
    {"kind": "growth", "pass": "prefill", "model": "tiny", "positions": [4, 20]},
    {"kind": "growth", "pass": "chunk", "model": "tiny", "positions": [4], "tokens": 8},
    {"kind": "start", "model": "tiny"},
    {"kind": "memory", "model": "tiny", "tokens": 3},
    {"kind": "encode", "forms": ["qwen2"], "vocab": 512, "kilobytes": 20}
  ]})";

TEST_CASE("the shipped rows are read, have names of their own, and are those built into the program") {
  const std::vector<std::string> from_folder = names_of(bench::cases_of(bench::read_shapes({kShapes}), {1, 2}));
  const std::vector<std::string> built_in = names_of(bench::cases_of(bench::built_in_shapes(), {1, 2}));
  CHECK(from_folder == built_in);
  CHECK(std::set<std::string>(built_in.begin(), built_in.end()).size() == built_in.size());
  const std::set<std::string> names(built_in.begin(), built_in.end());
  for (const char* layout : {"nt", "nn", "tn"}) {
    for (const int m : {1, 4, 8, 16, 64, 512}) {
      for (const int n : {768, 2048, 4096}) {
        for (const int k : {768, 2048, 4096}) {
          CHECK(names.count("gemm/" + std::string(layout) + "/" + std::to_string(m) + "x" + std::to_string(n) + "x" +
                            std::to_string(k) + "/1t") == 1);
        }
      }
    }
  }
  for (const char* name : {"prefill/llama_28m/2t", "decode/llama_134m/1t", "prefill/mamba_130m/1t",
                           "decode/mamba2_130m/2t", "training/llama_4_2m/1t", "training/tutorial_hybrid/1t",
                           "training/samba_2_6m/1t", "speedup/decode/llama_134m", "block/mamba3/backward/1t"}) {
    INFO(name);
    CHECK(names.count(name) == 1);
  }
}

TEST_CASE("the rows that scripts/bench_peers.py compares are rows of samba bench") {
  const std::vector<std::string> built_in = names_of(bench::cases_of(bench::built_in_shapes(), {1}));
  const std::string script = read_file(Path(SAMBA_SOURCE_DIR) / "scripts/bench_peers.py");
  static const std::regex key("\"((?:prefill|decode|training)/[a-z0-9_]+)\":");
  std::size_t found = 0;
  for (std::sregex_iterator at(script.begin(), script.end(), key); at != std::sregex_iterator(); ++at, ++found) {
    const std::string name = (*at)[1].str() + "/1t";
    INFO(name);
    CHECK(std::count(built_in.begin(), built_in.end(), name) == 1);
  }
  CHECK(found == 11);
}

TEST_CASE("what a device or a numeric mode does not offer is named, and the rest is measured") {
  bench::Context context;
  context.threads = {1};
  context.measuring.repetitions = 1;
  const std::vector<bench::Case> cases = {
      {{"refused/1t"},
       false,
       [](const bench::Context&, const bench::Wanted&) -> std::vector<bench::Row> {
         refuse_unsupported("the device does not offer it");
       }},
      {{"measured/1t"}, false, [](const bench::Context&, const bench::Wanted&) { return std::vector<bench::Row>(1); }}};
  const bench::BenchReport report = bench::run_bench(context, cases, {}, {});
  REQUIRE(report.skipped.size() == 1);
  CHECK(report.skipped[0].name == "refused/1t");
  CHECK(report.skipped[0].reason == "the device does not offer it");
  CHECK(report.rows.size() == 1);
}

TEST_CASE("schema.json of the rows knows exactly the kinds and fields of the code") {
  const json schema = json::parse(read_file(kShapes / "schema.json"));
  std::set<std::string> kinds;
  for (const auto& [kind, definition] : schema["$defs"].items()) {
    INFO(kind);
    kinds.insert(kind);
    CHECK(definition["properties"]["kind"]["const"] == kind);
    std::set<std::string> described, known;
    for (const auto& [name, value] : definition["properties"].items()) described.insert(name);
    for (const std::string& name : bench::row_fields(kind)) known.insert(name);
    CHECK(described == known);
  }
  const std::vector<std::string> of_code = bench::row_kinds();
  CHECK(kinds == std::set<std::string>(of_code.begin(), of_code.end()));
  CHECK(schema["properties"]["rows"]["items"]["oneOf"].size() == of_code.size());
}

TEST_CASE("a shapes file that is wrong is refused with the place and what is accepted") {
  struct Refusal {
    const char* text;
    const char* words;
  };
  const Refusal refusals[] = {
      {"{\"rows\": 3}", "rows.json: /rows: must be a list"},
      {"{\"row\": []}", "rows.json: /row: unknown key; did you mean \"rows\"?"},
      {"{\"rows\": [{\"kind\": \"gem\"}]}", "rows.json: /rows/0/kind: must be one of gemm, packed"},
      {"{\"rows\": [{\"kind\": \"gem\"}]}", "did you mean \"gemm\"?"},
      {"{\"rows\": [{\"m\": [1]}]}", "rows.json: /rows/0/kind: is required"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"m\": [1], \"n\": [2]}]}", "rows.json: /rows/0/k: is required"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"m\": [1, 0], \"n\": [2], \"k\": [2]}]}",
       "rows.json: /rows/0/m/1: must be an integer from 1 to 1048576, got 0"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"m\": [1], \"n\": [], \"k\": [2]}]}",
       "/rows/0/n: must be a list of positive"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"layout\": [\"nt\"], \"m\": [1], \"n\": [2], \"k\": [2]}]}",
       "/rows/0/layout: unknown key; did you mean \"layouts\"?"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"layouts\": [\"tt\"], \"m\": [1], \"n\": [2], \"k\": [2]}]}",
       "/rows/0/layouts/0: must be one of nt, nn, tn"},
      {"{\"rows\": [{\"kind\": \"prefill\", \"model\": \"a\"}]}",
       "/rows/0/model: names a model, but no file has /models"},
      {"{\"rows\": [{\"kind\": \"gemm\", \"quick\": 1, \"m\": [1], \"n\": [2], \"k\": [2]}]}",
       "/rows/0/quick: must be true or false, got 1"},
      {"{\"models\": {\"a\": {\"config\": {\"vocab\": 16, \"d_model\": 32, \"layers\": [{\"kind\": \"mamba4\"}]}}}}",
       "rows.json: /models/a/config/layers/0/kind: must be one of"},
      {"{\"rows\": [{\"kind\": \"block\", \"d_model\": 32, \"layer\": {\"kind\": \"mamba1\", \"window\": 3}}]}",
       "rows.json: /rows/0/layer/window"},
      {"{\"rows\": [{\"kind\": \"fixed15\", \"m\": [1], \"n\": [2], \"k\": [2]}, "
       "{\"kind\": \"fixed15\", \"m\": [1], \"n\": [2], \"k\": [2]}]}",
       "two rows have the name fixed15/1x2x2/1t"},
      {"[1", "rows.json is not JSON"},
  };
  for (const Refusal& refusal : refusals) {
    INFO(refusal.text);
    CHECK_THAT(refusal_of(refusal.text), Contains(refusal.words));
  }
  const std::string models =
      R"({"models": {"tiny": {"config": {"vocab": 16, "d_model": 32, "layers": [{"kind": "mamba3"}]}}}, "rows": [)";
  CHECK_THAT(refusal_of(models + R"({"kind": "decode", "model": "tiy"}]})"),
             Contains("/rows/0/model: must be one of tiny, got \"tiy\"; did you mean \"tiny\"?"));
  CHECK_THAT(refusal_of(models + R"({"kind": "growth", "model": "tiny", "positions": [4]}]})"),
             Contains("/rows/0/positions: must be a list of 2 of them"));
}

TEST_CASE("a row is chosen by its name or by parts of it, and an unknown one is refused with the nearest") {
  CHECK(bench::selects("decode", "decode/tiny/1t"));
  CHECK(bench::selects("tiny/1t", "decode/tiny/1t"));
  CHECK(bench::selects("decode/tiny/1t", "decode/tiny/1t"));
  CHECK_FALSE(bench::selects("decode/1t", "decode/tiny/1t"));
  CHECK_FALSE(bench::selects("dec", "decode/tiny/1t"));
  CHECK_FALSE(bench::selects("", "decode/tiny/1t"));
  const std::vector<bench::Case> cases = cases_from(kTinyShapes);
  CHECK(bench::selected_rows(cases, {{"decode"}, false}) ==
        std::vector<std::string>{"decode/tiny/1t", "decode/tiny/2t", "speedup/decode/tiny", "growth/decode/tiny/1t",
                                 "growth/decode/tiny/2t"});
  CHECK(bench::selected_rows(cases, {{}, true}) ==
        std::vector<std::string>{"prefill/tiny/1t", "prefill/tiny/2t", "speedup/prefill/tiny"});
  CHECK_THROWS_WITH(bench::selected_rows(cases, {{"decod"}, false}), Contains("did you mean decode?"));
}

TEST_CASE("samba bench --list names the rows and measures nothing; what it does not know it refuses") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "shapes.json", kTinyShapes);
  const std::string shapes = (folder / "shapes.json").string();
  const CommandResult listed = samba_command({"bench", "--list", "--shapes", shapes, "--threads", "1", "decode/tiny"});
  CHECK(listed.code == 0);
  CHECK(listed.out == "decode/tiny/1t\ngrowth/decode/tiny/1t\n");
  const CommandResult as_json = samba_command({"bench", "--list", "--shapes", folder.path().string(), "--json"});
  CHECK(json::parse(as_json.out)["rows"].size() > 20);

  const CommandResult unknown = samba_command({"bench", "--shapes", shapes, "prefil"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("no row is named 'prefil'; did you mean prefill?"));
  write_file_atomically(folder / "bad.json", R"({"rows": [{"kind": "gemm", "m": "8"}]})");
  const CommandResult bad = samba_command({"bench", "--list", "--shapes", (folder / "bad.json").string()});
  CHECK(bad.code == 2);
  CHECK_THAT(bad.err, Contains("bad.json: /rows/0/m: must be a list of positive integers, got \"8\""));
  CHECK(samba_command({"bench", "--list", "--shapes", (folder / "none.json").string()}).code == 2);
}

// Every element is closed: tags balance, attributes are quoted.
void check_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    REQUIRE(end != std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    CHECK(std::count(tag.begin(), tag.end(), '"') % 2 == 0);
    if (tag.starts_with("/")) {
      REQUIRE_FALSE(open.empty());
      CHECK(open.back() == tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  CHECK(open.empty());
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
}

TEST_CASE("the roofline is well-formed, with a roof for each number of threads and a point for each row that has one") {
  bench::BenchReport report;
  report.machine.processor = "A <fast> & \"wide\" processor";
  report.machine.limits[1] = {.flops = 100e9, .read_bytes = 20e9, .read_bytes_huge_pages = 25e9};
  report.machine.limits[2] = {.flops = 200e9, .read_bytes = 40e9, .read_bytes_huge_pages = 40e9};
  bench::Row row;
  row.name = "gemm/nt/1x2x3/1t";
  row.cost = {.flops = 2e9, .bytes = 1e9};
  row.timing.wall_min = 0.1;
  report.rows = {row, bench::Row{}};
  const std::string svg = bench::roofline_svg(report);
  check_well_formed(svg);
  CHECK_THAT(svg, Contains("gemm/nt/1x2x3/1t: 20.0 GFLOP/s") && Contains("A &lt;fast&gt; &amp; &quot;wide&quot;") &&
                      Contains("2 threads: 200 GFLOP/s, 40 GB/s"));
  std::size_t roofs = 0, points = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++roofs;
  for (std::size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1)) ++points;
  CHECK(roofs == 2);
  CHECK(points == 1);
  check_well_formed(bench::roofline_svg({}));
}

TEST_CASE("a ratio is 1 at the limit, and larger is better whatever the unit") {
  bench::Row speed;
  speed.achieved = 50.0, speed.limit = 100.0, speed.peer = 25.0;
  CHECK(speed.ratio() == 0.5);
  CHECK(speed.against_peer() == 2.0);
  bench::Row time;
  time.less_is_better = true;
  time.achieved = 50.0, time.limit = 25.0, time.peer = 100.0;
  CHECK(time.ratio() == 0.5);
  CHECK(time.against_peer() == 2.0);
}

TEST_CASE("the cost of a model counts its products, its visible pairs and the bytes of its weights") {
  const std::vector<bench::Case> unused = cases_from(kTinyShapes);
  const StackConfig config = stack_config_from_json(json::parse(
      R"({"vocab": 16, "d_model": 8, "layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 12}]})"));
  const double matrices = 4 * 8 * 8 + 3 * 8 * 12, norms = 2 * 8, head = 16 * 8;
  const bench::Cost step = bench::decode_cost(config, 5);
  CHECK(step.flops == 2 * (matrices + head) + 4 * 8 * 6);
  CHECK(step.bytes == 4 * (matrices + norms + head) + 2 * 4 * 8 * 5);
  const bench::Cost prompt = bench::prefill_cost(config, 3);
  CHECK(prompt.flops == 2 * (3 * matrices + head) + 4 * 8 * (1 + 2 + 3));
}

}  // namespace
}  // namespace samba
