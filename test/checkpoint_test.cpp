// Checkpoints: what is saved loads and saves to the same bytes; whatever is damaged is refused by its class; a failed
// save leaves the old file.
#include "samba/train/checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <set>

#include "file_faults.h"
#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/legacy_checkpoint.h"
#include "small_stack.h"
#include "temporary_folder.h"

using namespace samba;
using Json = nlohmann::json;

namespace {

std::unique_ptr<SambaTrainer> tiny_trainer(Executor& executor) {
  OptimizerSettings settings;
  settings.max_norm = 0.5;
  ScheduleFields schedule;
  schedule.kind = "cosine";
  schedule.peak_lr = 0.01;
  schedule.warmup_steps = 2;
  schedule.total_steps = 9;
  auto trainer =
      SambaTrainer::create(executor, tiny_attention_config(), 0xFFFFFFFFFFFFFFFFULL, settings, Schedule(schedule));
  trainer->train_step(token_array(2, 3, 5, 0), token_array(2, 3, 5, 1));
  return trainer;
}

// The class of the refusal; "" when the file loads.
std::string refusal(Executor& executor, const Path& path, bool training) {
  try {
    if (training) {
      load_for_training(executor, path);
    } else {
      load_for_inference(executor, path);
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    CHECK_THAT(error.what(), Catch::Contains(path.string()));
    return error.error_class();
  }
  return "";
}

// An archive with the header edited and its length and digest made right again.
std::string with_header(const std::string& archive, const std::function<void(std::string&)>& edit) {
  std::uint64_t length = 0;
  std::memcpy(&length, archive.data() + kArchiveMagic.size(), 8);
  std::string header = archive.substr(25, length);
  edit(header);
  const std::string arrays = archive.substr(25 + length + 32);
  length = header.size();
  Sha256 hash;
  hash.update(header);
  const Sha256Digest digest = hash.finish();
  return std::string(kArchiveMagic) + std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(reinterpret_cast<const char*>(digest.data()), 32) + arrays;
}

std::string with_state(const std::string& archive, const std::function<void(Json&)>& edit) {
  return with_header(archive, [&](std::string& header) {
    Json value = parse_json(header);
    edit(value["state"]);
    header = canonical_json(value);
  });
}

struct Fixture {
  Fixture() {
    faults::reset();
    trainer = tiny_trainer(*executor);
    save_checkpoint(*trainer, folder / "a.samba");
    archive = read_file(folder / "a.samba");
    std::uint64_t length = 0;
    std::memcpy(&length, archive.data() + kArchiveMagic.size(), 8);
    header_end = 25 + static_cast<std::size_t>(length);
  }
  std::string refused(const std::string& content, bool training) {
    std::ofstream(folder / "b.samba", std::ios::binary) << content;  // thousands of these: not made durable
    return refusal(*executor, folder / "b.samba", training);
  }

  TemporaryFolder folder;
  std::unique_ptr<Executor> executor = make_executor("reference");
  std::unique_ptr<SambaTrainer> trainer;
  std::string archive;
  std::size_t header_end = 0;
};

}  // namespace

TEST_CASE_METHOD(Fixture, "saving right after loading gives the file's bytes, and its SHA-256 is returned") {
  const auto loaded = load_for_training(*executor, folder / "a.samba");
  CHECK(training_digest(*loaded) == training_digest(*trainer));
  CHECK(loaded->generator().seed() == 0xFFFFFFFFFFFFFFFFULL);
  CHECK(save_checkpoint(*loaded, folder / "b.samba") == sha256_hex(archive));
  CHECK(read_file(folder / "b.samba") == archive);
}

TEST_CASE_METHOD(Fixture, "a file cut short anywhere is refused") {
  std::set<std::string> classes;
  for (std::size_t bytes = 0; bytes < archive.size(); ++bytes) {
    const std::string error_class = refused(archive.substr(0, bytes), bytes % 2 == 0);
    const std::string expected = bytes < 17                ? "format"
                                 : bytes < 25              ? "truncated"
                                 : bytes < header_end + 32 ? "header_integrity"
                                                           : "size";
    INFO(bytes << " bytes");
    REQUIRE(error_class == expected);
    classes.insert(error_class);
  }
  CHECK(classes.size() == 4);
}

TEST_CASE_METHOD(Fixture, "one flipped bit anywhere is refused") {
  for (std::size_t byte = 0; byte < archive.size(); ++byte) {
    std::string damaged = archive;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte % 8)));
    const std::string error_class = refused(damaged, byte % 2 == 0);
    INFO("byte " << byte << ": " << error_class);
    if (byte < 17) {
      REQUIRE(error_class == "format");
    } else if (byte < 25) {
      REQUIRE((error_class == "header_length" || error_class == "header_integrity"));
    } else if (byte < header_end + 32) {
      REQUIRE(error_class == "header_integrity");
    } else {
      REQUIRE_THAT(error_class, Catch::StartsWith("array_integrity:"));
    }
  }
}

TEST_CASE_METHOD(Fixture, "the old checkpoint stays whichever write, fsync or rename fails") {
  trainer->train_step(token_array(2, 3, 5, 2), token_array(2, 3, 5, 3));
  faults::reset();
  save_checkpoint(*trainer, folder / "c.samba");
  const int writes = faults::write.calls.load();
  REQUIRE(writes > 4);
  for (int failing = 1; failing <= writes + 2; ++failing) {
    faults::reset();
    faults::error = failing <= writes ? ENOSPC : EIO;
    if (failing <= writes) faults::write.failing = failing;
    if (failing == writes + 1) faults::fsync.failing = 1;
    if (failing == writes + 2) faults::rename.failing = 1;
    INFO("fault " << failing);
    try {
      save_checkpoint(*trainer, folder / "a.samba");
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::resource);
      CHECK_THAT(error.what(), Catch::Contains("a.samba"));
    }
    CHECK(read_file(folder / "a.samba") == archive);
    CHECK(folder.entries() == 2);
  }
  faults::reset();
}

TEST_CASE_METHOD(Fixture, "an array that changes while it is saved is noticed") {
  int reads = 0;
  const PieceReader changing = [&](std::uint64_t, void* to, std::size_t bytes) { std::memset(to, ++reads, bytes); };
  CHECK_THROWS_WITH(
      write_samba_archive(folder / "b.samba", Json::object(), {1, 1, 1, 1}, {changing, changing, changing, changing}),
      Catch::Contains("parameters changed while it was saved"));
  CHECK(folder.entries() == 1);
}

TEST_CASE_METHOD(Fixture, "a header above 1 MiB is refused before a file is made") {
  SambaConfigFields fields;
  fields.vocab = 2;
  fields.d_model = 2;
  fields.layers.assign(1900, "attention");
  fields.n_heads = 1;
  fields.intermediate = 1;
  const auto large = SambaTrainer::create(*executor, make_config(fields), 1);
  CHECK_THROWS_WITH(save_checkpoint(*large, folder / "b.samba"),
                    Catch::Contains("header") && Catch::Contains("1048576"));
  CHECK(folder.entries() == 1);
}

TEST_CASE_METHOD(Fixture, "progress grows and ends at the size of the file") {
  std::uint64_t last = 0;
  const FileProgress watch = [&](std::uint64_t done, std::uint64_t total) {
    CHECK(done > last);
    CHECK(total == archive.size());
    last = done;
  };
  save_checkpoint(*trainer, folder / "b.samba", watch);
  CHECK(last == archive.size());
  last = 0;
  load_for_inference(*executor, folder / "b.samba", watch);
  CHECK(last == archive.size());
}

TEST_CASE_METHOD(Fixture, "a duplicate key is refused as json") {
  const std::string doubled =
      with_header(archive, [](std::string& header) { header.replace(header.find("\"t\":1"), 5, "\"t\":1,\"t\":1"); });
  CHECK(refused(doubled, true) == "json");
  CHECK(refused(doubled, false) == "json");
}

TEST_CASE_METHOD(Fixture, "a header nested deeper than anything valid is refused as json") {
  const std::string deep = with_header(archive, [](std::string& header) {
    header.insert(header.find("\"t\":1"), "\"x\":" + std::string(5000, '[') + std::string(5000, ']') + ",");
  });
  CHECK(refused(deep, true) == "json");
}

TEST_CASE_METHOD(Fixture, "for training each field is refused by its class, for inference it is dropped") {
  const auto check = [&](const char* error_class, const std::function<void(Json&)>& edit) {
    const std::string edited = with_state(archive, edit);
    CHECK(refused(edited, true) == error_class);
    CHECK(refused(edited, false).empty());
  };
  check("optimizer", [](Json& state) { state["optimizer"]["beta1"] = 1.0; });
  check("optimizer", [](Json& state) { state["optimizer"]["beta2"] = -0.1; });
  check("optimizer", [](Json& state) { state["optimizer"]["max_norm"] = 0; });
  check("optimizer", [](Json& state) { state["optimizer"].erase("max_norm"); });
  check("optimizer", [](Json& state) { state["optimizer"]["lr"] = "0.1"; });
  check("optimizer", [](Json& state) { state["optimizer"]["accumulation_steps"] = 2.0; });
  check("schedule", [](Json& state) { state["schedule"].erase("min_lr"); });
  check("schedule", [](Json& state) { state["schedule"]["total_steps"] = 1; });
  check("rng", [](Json& state) { state["rng"]["counter"] = 1.0; });
  check("rng", [](Json& state) { state["rng"]["seed"] = -1; });
  check("rng", [](Json& state) { state["rng"]["counter"] = 0xFFFFFFFFFFFFFFFFULL; });
  check("numeric_profile", [](Json& state) { state["numeric_profile"] = nullptr; });
}

TEST_CASE_METHOD(Fixture, "t is an integer that a step can still follow") {
  for (const Json& t : {Json(-1), Json(1.0), Json(0xFFFFFFFFFFFFFFFFULL), Json(INT64_MAX), Json()}) {
    INFO(t.dump());
    CHECK(refused(with_state(archive, [&](Json& state) { state["t"] = t; }), false) == "metadata");
  }
}

TEST_CASE_METHOD(Fixture, "numbers with a point are no integers in registry, shape and nbytes") {
  const auto replaced = [&](const char* from, const char* to) {
    return with_header(archive, [&](std::string& header) {
      REQUIRE(header.find(from) != std::string::npos);
      header.replace(header.find(from), std::strlen(from), to);
    });
  };
  CHECK(refused(replaced("\"offset\":0,", "\"offset\":0.0,"), true) == "registry");
  CHECK(refused(replaced("\"shape\":[5,4]", "\"shape\":[5.0,4]"), false) == "registry");
  const std::string count = std::to_string(trainer->stack().registry().total());
  CHECK(refused(replaced(("\"shape\":[" + count + "]").c_str(), ("\"shape\":[" + count + ".0]").c_str()), true) ==
        "array_descriptor");
}

TEST_CASE_METHOD(Fixture, "a legacy file is read for training, with its duplicates and sizes checked") {
  Json payload = parse_json(archive.substr(25, header_end - 25))["state"];
  std::size_t at = header_end + 32;
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    const Index count = array == kBufferInitialized ? static_cast<Index>(trainer->stack().registry().tensors().size())
                                                    : trainer->stack().registry().total();
    const std::string bytes = archive.substr(at, static_cast<std::size_t>(4 * count));
    at += bytes.size();
    payload[std::string(archive_array_name(array))] = {
        {"dtype", archive_array_dtype(array)},
        {"shape", {count}},
        {"hex", to_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})}};
  }
  const std::string text = canonical_json(payload);
  const auto file = [](const std::string& payload_text, const std::string& digest) {
    return "{\"schema\": \"mojolearn.samba-stack-json-checkpoint.v1\",\n \"payload_sha256\": \"" + digest +
           "\", \"payload\": " + payload_text + "}\n";
  };
  write_file_atomically(folder / "b.samba", file(text, sha256_hex(text)));
  const auto loaded = load_for_training(*executor, folder / "b.samba");
  CHECK(training_digest(*loaded) == training_digest(*trainer));
  CHECK(save_checkpoint(*loaded, folder / "c.samba") == sha256_hex(archive));
  CHECK(inspect_checkpoint(folder / "b.samba", false).legacy);

  std::string doubled = text;
  doubled.replace(doubled.find("\"t\":1"), 5, "\"t\":1,\"t\":1");
  CHECK(refused(file(doubled, sha256_hex(text)), true) == "format");
  CHECK(refused(file(text, sha256_hex(text + " ")), false) == "legacy_integrity");
  CHECK(refused(std::string(100000, '['), false) == "format");

  std::filesystem::resize_file(folder / "b.samba", LegacyCheckpoint::kMostBytes + 1);  // sparse
  CHECK(refusal(*executor, folder / "b.samba", true) == "format");
}

TEST_CASE_METHOD(Fixture, "a summary says what the file holds without reading its arrays") {
  std::string damaged = archive;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file_atomically(folder / "b.samba", damaged);
  const CheckpointSummary summary = inspect_checkpoint(folder / "b.samba", false);
  CHECK(summary.bytes == archive.size());
  CHECK(summary.config == tiny_attention_config());
  CHECK(summary.state["t"] == 1);
  CHECK_THROWS_WITH(inspect_checkpoint(folder / "b.samba", true), Catch::Contains("buf_initialized"));
}

TEST_CASE_METHOD(Fixture, "loading for inference takes no memory for moments, and only computes forward") {
  const auto stack = load_for_inference(*executor, folder / "a.samba");
  CHECK(stack->parameters_sha256() == trainer->stack().parameters_sha256());
  const Array ids = token_array(2, 3, 5, 4);
  CHECK_THROWS_WITH(stack->loss(ids, ids), Catch::Contains("inference is forward only"));
  CHECK_THROWS_WITH(stack->loss_and_grads(ids, ids), Catch::Contains("inference is forward only"));
  const Array logits = stack->forward(ids);
  const Array expected = trainer->stack().forward(ids);
  CHECK(std::memcmp(logits.data(), expected.data(), logits.byte_size()) == 0);
}

TEST_CASE_METHOD(Fixture, "a missing file is bad input, not a damaged one") {
  try {
    load_for_training(*executor, folder / "none.samba");
    FAIL("was not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::value);
    CHECK_THAT(error.what(), Catch::Contains("none.samba") && Catch::Contains("No such file"));
  }
}
