// The driver of recorded cases itself: what it reports, what it refuses, and that it can find a difference at all.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/zstd_frame.h"
#include "samba/numerics/float32.h"
#include "samba/verify/case_file.h"
#include "samba/verify/verify.h"
#include "temporary_folder.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path golden(const std::string& name) { return fs::path(SAMBA_GOLDEN_DIR) / name; }

verify::VerifyReport run(const fs::path& path) {
  const auto executor = make_executor("reference");
  return verify::verify_cases(*executor, std::span(&path, 1));
}

// A copy of a case whose tensors and JSON `edit` may change.
template <class Edit>
fs::path edited_copy(const TemporaryFolder& folder, const std::string& name, Edit&& edit) {
  SafetensorsFile file = read_safetensors(golden(name));
  json body = json::parse(file.metadata.at("case"));
  edit(body, file.tensors);
  ConstArrayMap tensors;
  for (const auto& [key, array] : file.tensors) tensors[key] = array.view();
  const fs::path path = folder / "case.safetensors";
  write_safetensors(path, tensors, {{"case", body.dump()}});
  return path;
}

void flip_bit(Array& array, std::size_t index) {
  float& value = array.floats()[index];
  value = from_bits(to_bits(value) ^ 1U);
}

std::string refusal(const fs::path& path) {
  try {
    run(path);
    return "accepted";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    return error.what();
  }
}

}  // namespace

TEST_CASE("a file of cases can be stored packed, and a damaged packing is refused") {
  const TemporaryFolder folder;
  std::string content = read_file(golden("core/linear_5x7x9.safetensors"));
  std::vector<std::byte> frame = zstd_compress(std::as_bytes(std::span(content)));
  const fs::path packed = folder / "case.safetensors.zst";
  const auto store = [&] {
    write_file_atomically(packed, {reinterpret_cast<const char*>(frame.data()), frame.size()});
  };
  store();
  for (const fs::path& path : {folder.path(), packed, folder / "case.safetensors"}) {
    const verify::VerifyReport report = run(path);
    REQUIRE(report.results.size() == 1);
    CHECK(report.results[0].verdict == verify::Verdict::equal);
  }
  frame.pop_back();
  store();
  CHECK_THAT(refusal(folder.path()), Catch::Contains("case.safetensors.zst: the zstd frame is damaged"));
  content.pop_back();
  frame = zstd_compress(std::as_bytes(std::span(content)));
  store();
  CHECK_THAT(refusal(folder.path()), Catch::Contains("case.safetensors.zst"));
  frame = {};
  store();
  CHECK_THAT(refusal(folder.path()),
             Catch::Contains("case.safetensors.zst: the zstd frame does not state its content size"));
}

TEST_CASE("one flipped bit of an expected tensor is reported with its position, both values and the distance") {
  const TemporaryFolder folder;
  float want = 0.0F;
  const auto path = edited_copy(folder, "core/linear_5x7x9.safetensors", [&](json&, ArrayMap& tensors) {
    flip_bit(tensors.at("grad.weight"), 20);
    want = tensors.at("grad.weight").floats()[20];
  });
  const verify::VerifyReport report = run(path);
  REQUIRE(report.results.size() == 1);
  const verify::CaseResult& result = report.results[0];
  CHECK(result.verdict == verify::Verdict::different);
  CHECK(result.differences == 1);
  REQUIRE(result.first.has_value());
  CHECK(result.first->name == "grad.weight");
  CHECK(result.first->index == 20);
  CHECK(result.first->want_bits == to_bits(want));
  CHECK(result.first->got_bits == (to_bits(want) ^ 1U));
  CHECK(result.first->ulp == 1);
  CHECK(result.first->different == 1);
  CHECK(result.first->of == 63);
  CHECK(verify::result_line(result).find("at 20 (2, 2)") != std::string::npos);
  CHECK(verify::closing_line(report) == "cases: 0 equal, 1 different, 0 not applicable");
}

TEST_CASE("the earliest stage that leaves the record is told first") {
  const TemporaryFolder folder;
  const auto path = edited_copy(folder, "mamba3/b2_l5.safetensors", [](json&, ArrayMap& tensors) {
    flip_bit(tensors.at("out.y0"), 0);
    flip_bit(tensors.at("stage.gate"), 3);
    flip_bit(tensors.at("stage.norm.out"), 7);
  });
  const verify::VerifyReport report = run(path);
  REQUIRE(report.results.at(0).first.has_value());
  CHECK(report.results[0].first->name == "stage.norm.out");
  CHECK(report.results[0].first->index == 7);
  CHECK(report.results[0].differences == 3);
}

TEST_CASE("any NaN equals any NaN, and minus zero is not plus zero") {
  const float nans[] = {from_bits(0x7FC00000U), from_bits(0xFFC12345U)};
  const float zeros[] = {0.0F, -0.0F};
  const auto difference = [](const float& a, const float& b) {
    return verify::first_difference("x", {DType::float32, {1}, &a}, {DType::float32, {1}, &b});
  };
  CHECK(!difference(nans[0], nans[1]).has_value());
  REQUIRE(difference(zeros[0], zeros[1]).has_value());
  CHECK(difference(zeros[0], zeros[1])->ulp == 1);
  CHECK(difference(nans[0], zeros[0]).has_value());
}

TEST_CASE("another shape or dtype is a difference even if the bytes are equal") {
  const float values[4] = {};
  const auto difference =
      verify::first_difference("x", {DType::float32, {2, 2}, values}, {DType::float32, {4}, values});
  REQUIRE(difference.has_value());
  CHECK(difference->detail.find("(2, 2)") != std::string::npos);
  CHECK(verify::first_difference("x", {DType::int32, {4}, values}, {DType::float32, {4}, values}).has_value());
}

TEST_CASE("a file with an unknown key, kind, op or schema is refused as a whole") {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& name, const std::function<void(json&)>& edit) {
    return refusal(edited_copy(folder, name, [&](json& body, ArrayMap&) { edit(body); }));
  };
  const std::string gemm = "core/gemm_TN_k640.safetensors";
  const std::string block = "mamba3/b2_l5.safetensors";
  CHECK(with(gemm, [](json& body) { body["options"]["layuot"] = "TN"; }).find("layuot") != std::string::npos);
  CHECK(with(gemm, [](json& body) { body["note2"] = ""; }).find("note2") != std::string::npos);
  CHECK(with(gemm, [](json& body) { body["kind"] = "gemv"; }).find("gemv") != std::string::npos);
  CHECK(with(gemm, [](json& body) { body.erase("dims"); }).find("dims") != std::string::npos);
  CHECK(with(gemm, [](json& body) { body["schema"] = "samba.case/2"; }).find("samba.case/2") != std::string::npos);
  CHECK(with(block, [](json& body) { body["calls"][0]["op"] = "fwd"; }).find("fwd") != std::string::npos);
  CHECK(with(block, [](json& body) { body["calls"][0]["yy"] = "out.y0"; }).find("yy") != std::string::npos);
}

TEST_CASE("a case that names a tensor no file holds is different, never equal") {
  const TemporaryFolder folder;
  const auto path = edited_copy(folder, "mamba3/b2_l5.safetensors",
                                [](json& body, ArrayMap&) { body["calls"][0]["y"] = "out.missing"; });
  const verify::VerifyReport report = run(path);
  REQUIRE(report.results.at(0).verdict == verify::Verdict::different);
  CHECK(report.results[0].first->detail.find("out.missing") != std::string::npos);
}

TEST_CASE("a refusal that does not come, or lacks a word, is a difference") {
  const TemporaryFolder folder;
  const json list = json::parse(read_file(golden("mamba3/refusals.json")));
  json body;
  for (const json& entry : list["cases"]) {
    if (entry["id"] == "mamba3/refusals/missing_weight") body = entry;
  }
  REQUIRE(body.is_object());
  body["tensors"] = golden("mamba3/b2_l5.safetensors").string();
  const fs::path path = folder / "case.json";
  write_file_atomically(path, body.dump());
  CHECK(run(path).count(verify::Verdict::equal) == 1);

  json other_word = body;
  other_word["expect_refusal"]["names"] = {"no_such_word"};
  write_file_atomically(path, other_word.dump());
  CHECK(run(path).results.at(0).first->detail.find("no_such_word") != std::string::npos);

  json other_kind = body;
  other_kind["expect_refusal"]["kind"] = "corrupt";
  write_file_atomically(path, other_kind.dump());
  CHECK(run(path).count(verify::Verdict::different) == 1);

  json accepted = body;
  accepted["weight_edits"] = json::object();
  write_file_atomically(path, accepted.dump());
  CHECK(run(path).results.at(0).first->detail.find("accepted") != std::string::npos);
}

TEST_CASE("what the interface cannot hold is not applicable, with its reason, and never counted as equal") {
  const TemporaryFolder folder;
  const auto path = edited_copy(folder, "mamba3/b2_l5.safetensors",
                                [](json& body, ArrayMap&) { body["needs"].push_back("refusal.untyped"); });
  const verify::VerifyReport report = run(path);
  CHECK(verify::closing_line(report) == "cases: 0 equal, 0 different, 1 not applicable");
  CHECK(report.results.at(0).reason == "the interface cannot hold a length that is no integer");
  CHECK(verify::summary_table(report).find("not applicable (1): the interface cannot hold") != std::string::npos);
}

TEST_CASE("the JSON report holds the counts and the first difference") {
  const TemporaryFolder folder;
  const auto path = edited_copy(folder, "core/linear_5x7x9.safetensors",
                                [](json&, ArrayMap& tensors) { flip_bit(tensors.at("out.c"), 4); });
  const auto executor = make_executor("reference");
  const json report = verify::report_json(verify::verify_cases(*executor, std::span(&path, 1)), *executor);
  CHECK(report.at("device") == "reference");
  CHECK(report.at("different") == 1);
  CHECK(report.at("cases").at(0).at("first_difference").at("index") == 4);
  CHECK(report["cases"][0]["first_difference"].at("name") == "out.c");
}

}  // namespace samba
