// The checkpoint of any stack: what is saved reads back and saves to the same bytes; a failed save leaves the old file.
// What is refused when it is read: stack_archive_refusals_test.cpp.
#include "stack_archive_fixture.h"

namespace samba {

TEST_CASE_METHOD(StackArchiveFixture,
                 "what a stack archive holds reads back, and saving it again gives the same bytes") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    const std::string file = write(codec);
    CHECK(is_stack_archive(folder / "a.samba"));
    CHECK_FALSE(is_samba_archive(folder / "a.samba"));
    StackArchiveReader reader(folder / "a.samba");
    CHECK(reader.state() == training_state());
    CHECK_FALSE(reader.inference_only());
    CHECK(reader.file_size() == file.size());
    REQUIRE(reader.parameters().size() == 2);
    REQUIRE(reader.moments().size() == 3);
    const StackTensor& embed = reader.parameters()[0];
    CHECK(embed.name == "embed.weight");
    CHECK(embed.shape == Shape{5, 16});
    CHECK(embed.codec == codec);
    CHECK(reader.parameters()[1].codec == TensorCodec::none);  // 12 bytes that zstd does not make smaller
    CHECK(reader.moments()[2].dtype == DType::int32);
    CHECK(reader.read(reader.moments()[2]) == bytes_of(std::vector<std::int32_t>{0, 1}));  // any one, in any order
    CHECK(reader.read(embed) == bytes_of(ramp(80)));
    CHECK(embed.sha256 == sha256_hex(bytes_of(ramp(80)).data(), 320));

    std::vector<StackTensorSource> again[2];
    const auto resave = [&](std::span<const StackTensor> tensors, std::vector<StackTensorSource>& sources) {
      for (const StackTensor& t : tensors) sources.push_back(source(t.name, t.dtype, t.shape, reader.read(t)));
    };
    resave(reader.parameters(), again[0]);
    resave(reader.moments(), again[1]);
    const std::string digest = write_stack_archive(folder / "c.samba", reader.state(), again[0], again[1], codec);
    CHECK(read_file(folder / "c.samba") == file);
    CHECK(digest == sha256_hex(file));
  }
  CHECK(write(TensorCodec::zstd).size() < write(TensorCodec::none).size());
}

TEST_CASE_METHOD(StackArchiveFixture, "packed weights lie in the file as codes and exponents") {
  write_stack_archive(folder / "a.samba", inference_state("int8"), packed_parameters(), {});
  StackArchiveReader reader(folder / "a.samba");
  CHECK(reader.inference_only());
  CHECK(reader.parameters()[0].raw_bytes == 6 + 8);
  const std::vector<std::byte> raw = reader.read(reader.parameters()[0]);
  CHECK(raw[0] == std::byte{0x81});
  CHECK(raw[6 + 4] == std::byte{120});

  const std::vector<StackTensorSource> half = {
      source("w", DType::bfloat16, {2, 2}, bytes_of(std::vector<std::uint16_t>{0x3F80, 0x8000, 0x0001, 0xFF7F}))};
  write_stack_archive(folder / "a.samba", inference_state("bfloat16"), half, {});
  StackArchiveReader second(folder / "a.samba");
  CHECK(second.parameters()[0].raw_bytes == 8);
}

TEST_CASE_METHOD(StackArchiveFixture, "a tensor that the format does not hold is refused before a file is made") {
  const auto saving = [&](std::vector<StackTensorSource> parameters, const Json& state = inference_state("float32")) {
    try {
      write_stack_archive(folder / "n.samba", state, parameters, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::value);
      CHECK(folder.entries() == 0);
      return std::string(error.what());
    }
    return std::string("saved");
  };
  const std::vector<std::byte> four(4);
  CHECK_THAT(saving({source("../w", DType::float32, {1}, four)}), Catch::Contains("../w"));
  CHECK_THAT(saving({source("w", DType::float64, {1}, four)}), Catch::Contains("float64"));
  CHECK_THAT(saving({source("w", DType::int32, {1}, four)}), Catch::Contains("int32"));
  CHECK_THAT(saving({source("w", DType::int8, {4}, four)}, inference_state("int8")), Catch::Contains("two dimensions"));
  CHECK_THAT(saving({source("w", DType::float32, {0}, {})}), Catch::Contains("(0,)"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four), source("w", DType::float32, {1}, four)}),
             Catch::Contains("twice"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, training_state()), Catch::Contains("must be null"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, inference_state("int8")),
             Catch::Contains("weight_format"));
  Json state = inference_state("float32");
  state["config"]["text"] = std::string(kLongestStackHeader, 'x');
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, state), Catch::Contains("16777216"));
}

TEST_CASE_METHOD(StackArchiveFixture, "the old stack archive stays whichever write, fsync or rename fails") {
  const std::string old = write(TensorCodec::none);
  Json state = training_state();
  state["step"] = 4;
  faults::reset();
  write_stack_archive(folder / "c.samba", state, float_parameters(), float_moments());
  const int writes = faults::write.calls.load();
  REQUIRE(writes == 4 + 5);
  CHECK(faults::fsync.calls.load() == 2);  // the file and its folder
  for (int failing = 1; failing <= writes + 2; ++failing) {
    faults::reset();
    faults::error = failing <= writes ? ENOSPC : EIO;
    if (failing <= writes) faults::write.failing = failing;
    if (failing == writes + 1) faults::fsync.failing = 1;
    if (failing == writes + 2) faults::rename.failing = 1;
    INFO("fault " << failing);
    try {
      write_stack_archive(folder / "a.samba", state, float_parameters(), float_moments());
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::resource);
      CHECK_THAT(error.what(), Catch::Contains("a.samba"));
    }
    CHECK(read_file(folder / "a.samba") == old);
    CHECK(folder.entries() == 2);
  }
  faults::reset();
  faults::most_bytes = 7;  // short writes are continued
  write_stack_archive(folder / "a.samba", state, float_parameters(), float_moments());
  faults::reset();
  CHECK(read_file(folder / "a.samba") == read_file(folder / "c.samba"));
}

TEST_CASE_METHOD(StackArchiveFixture, "a tensor that changes while it is saved is noticed") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    int reads = 0;
    const std::vector<StackTensorSource> changing = {{"w", DType::float32, {64}, [&](std::span<std::byte> raw) {
                                                        std::fill(raw.begin(), raw.end(),
                                                                  static_cast<std::byte>(++reads));
                                                      }}};
    CHECK_THROWS_WITH(write_stack_archive(folder / "b.samba", inference_state("float32"), changing, {}, codec),
                      Catch::Contains("the tensor w changed while it was saved"));
    CHECK(folder.entries() == 0);
  }
}

TEST_CASE_METHOD(StackArchiveFixture, "progress of a stack archive grows and ends at the size of the file") {
  std::uint64_t last = 0;
  std::uint64_t announced = 0;
  write_stack_archive(folder / "a.samba", training_state(), float_parameters(), float_moments(), TensorCodec::zstd,
                      [&](std::uint64_t done, std::uint64_t total) {
                        CHECK(done > last);
                        last = done;
                        announced = total;
                      });
  CHECK(last == announced);
  CHECK(last == std::filesystem::file_size(folder / "a.samba"));
}

}  // namespace samba
