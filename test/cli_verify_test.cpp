// samba verify as a user runs it: what it prints, and its exit codes.
#include <catch2/catch.hpp>

#include "command.h"
#include "samba/formats/safetensors.h"
#include "samba/numerics/float32.h"

namespace samba {
namespace {

const std::string kGolden = SAMBA_GOLDEN_DIR;

std::string last_line(const std::string& text) {
  const std::string lines = text.substr(0, text.find_last_not_of('\n') + 1);
  return lines.substr(lines.rfind('\n') + 1);
}

// A case whose record has one bit flipped.
void write_wrong_case(const Path& path) {
  SafetensorsFile file = read_safetensors(Path(kGolden) / "core/linear_5x7x9.safetensors");
  float& value = file.tensors.at("out.c").floats()[9];
  value = from_bits(to_bits(value) ^ 1U);
  ConstArrayMap tensors;
  for (const auto& [name, array] : file.tensors) tensors[name] = array.view();
  write_safetensors(path, tensors, file.metadata);
}

}  // namespace

TEST_CASE("samba verify runs files and folders of cases on the device asked for, and closes with the counts") {
  for (const char* device : {"reference", "cpu"}) {
    const CommandResult result =
        samba_command({"verify", "--cases", kGolden + "/core", "--cases", kGolden + "/mamba3/l1.safetensors",
                       "--device", device, "--threads", "1"});
    CHECK(result.code == 0);
    CHECK(result.out.find(std::string("device ") + device) != std::string::npos);
    CHECK(last_line(result.out) == "cases: 75 equal, 0 different, 0 not applicable");
  }
}

TEST_CASE("samba verify tells the first difference and ends with 1") {
  const TemporaryFolder folder;
  write_wrong_case(folder / "wrong.safetensors");
  const CommandResult result = samba_command({"verify", "--cases", folder.path().string()});
  CHECK(result.code == 1);
  CHECK(result.out.find("core/linear_5x7x9: out.c at 9 (1, 2): got ") != std::string::npos);
  CHECK(result.out.find("1 ulp; 1 of 35 values differ") != std::string::npos);
  CHECK(last_line(result.out) == "cases: 0 equal, 1 different, 0 not applicable");

  const CommandResult as_json = samba_command({"verify", "--cases", folder.path().string(), "--json"});
  CHECK(as_json.code == 1);
  const auto report = nlohmann::json::parse(as_json.out);
  CHECK(report.at("different") == 1);
  CHECK(report.at("cases").at(0).at("first_difference").at("index") == 9);
}

TEST_CASE("samba verify names what is wrong with the files it is given") {
  const TemporaryFolder folder;
  write_text(folder / "case.json", R"({"schema": "samba.case/1", "id": "x/y", "kind": "gemv"})");
  const CommandResult unknown = samba_command({"verify", "--cases", folder.path().string()});
  CHECK(unknown.code == 3);
  CHECK(unknown.err.find("unknown kind 'gemv'") != std::string::npos);

  const CommandResult missing = samba_command({"verify", "--cases", "no/such/folder"});
  CHECK(missing.code == 2);
  CHECK(missing.err.find("no/such/folder") != std::string::npos);

  const TemporaryFolder empty;
  CHECK(samba_command({"verify", "--cases", empty.path().string()}).code == 2);
  CHECK(samba_command({"verify", "--cases", kGolden, "--model", "x"}).code == 2);
  CHECK(samba_command({"verify", "--steps", "1..2"}).code == 2);
}

TEST_CASE("samba verify --model checks a checkpoint") {
  const std::string model = kGolden + "/samba/ckpt/stack_04_hybrid_t3.ckpt";
  const CommandResult good = samba_command({"verify", "--model", model, "--threads", "1"});
  CHECK(good.code == 0);
  for (const char* name : {"checksums", "finite weights", "decode equals prefill", "chunks of any size",
                           "batch rows independent", "1 thread equals N threads", "instruction sets agree",
                           "packed equals expanded", "device equals reference", "differences are seen"}) {
    CHECK(good.out.find(std::string("ok      ") + name) != std::string::npos);
  }
  CHECK(last_line(good.out) == "checks: 10 passed, 0 failed");

  const CommandResult as_json = samba_command({"verify", "--model", model, "--json"});
  CHECK(nlohmann::json::parse(as_json.out).at("failed") == 0);
}

TEST_CASE("samba verify --model refuses a damaged checkpoint and one with a non-finite weight") {
  const CommandResult damaged = samba_command({"verify", "--model", kGolden + "/samba/corrupt/flip_parameters.ckpt"});
  CHECK(damaged.code == 3);
  CHECK(damaged.err.find("array_integrity:parameters") != std::string::npos);
  const CommandResult nan = samba_command({"verify", "--model", kGolden + "/samba/corrupt/param_nan.ckpt"});
  CHECK(nan.code == 3);
  CHECK(nan.err.find("embed.weight") != std::string::npos);
}

}  // namespace samba
