// TensorBoard's event files: checksums against known values, records and messages by a reader of the test's own, and
// what the real TensorBoard read from the same bytes (tensorboard/read.json, scripts/record_tensorboard.py).
#include <bit>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "error_of.h"
#include "event_reader.h"
#include "samba/core/sha256.h"
#include "samba/formats/event_file.h"
#include "temporary_folder.h"

namespace samba {
namespace {

// A log with everything that a run may write, at fixed times.
std::string sample_log() {
  std::vector<Event> events(7);
  events[0].wall_time = 1700000000.0;
  events[0].file_version = "brain.Event:2";
  events[1].wall_time = 1700000000.0;
  events[1].step = 1;
  events[1].session_start = true;
  for (int step = 1; step <= 3; ++step) {
    Event& event = events[static_cast<std::size_t>(step) + 1];
    event.wall_time = 1700000000.0 + 0.25 * step;
    event.step = step;
    event.values = {{"loss/training", 5.5F / static_cast<float>(step)},
                    {"learning_rate", 1e-4F * static_cast<float>(step)}};
  }
  events[4].values.push_back({"samples/0", "    The caf\xC3\xA9\n    is open"});
  events[5].wall_time = 1700000010.0;
  events[5].step = 3;
  events[5].session_start = true;
  events[6].wall_time = 1700000011.5;
  events[6].step = 3;
  events[6].values = {{"loss/training", 1.75F}, {"samples/0", "again"}};
  std::string bytes;
  for (const Event& event : events) bytes += event_record(encode_event(event));
  return bytes;
}

TEST_CASE("CRC-32C gives the values of RFC 3720, and the checksum of a record is masked") {
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  CHECK(crc32c(ascending) == 0x46DD794E);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c("") == 0);
  CHECK(masked_crc32c("123456789") ==
        static_cast<std::uint32_t>((0xE3069283U >> 15 | 0xE3069283U << 17) + 0xA282EAD8U));
}

TEST_CASE("the first record of a file is that of every event file") {
  Event first;
  first.wall_time = 0.0;
  first.file_version = "brain.Event:2";
  const std::string record = event_record(encode_event(first));
  // Its length is always 24; these twelve bytes begin the files of every program that writes them.
  CHECK(record.substr(0, 12) == std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  CHECK(record.substr(12, 24) == std::string("\x09\0\0\0\0\0\0\0\0\x1a\x0d", 11) + "brain.Event:2");
}

TEST_CASE("events come back as they were written") {
  const std::vector<ReadEvent> events = read_events(sample_log());
  REQUIRE(events.size() == 7);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[3].step == 2);
  CHECK(events[3].wall_time == 1700000000.5);
  CHECK(events[3].scalars.at("loss/training") == 2.75F);
  CHECK(events[4].texts.at("samples/0") == "    The caf\xC3\xA9\n    is open");
  CHECK(events[5].session == 1);
  CHECK(events[5].step == 3);
}

TEST_CASE("a flipped bit anywhere in a record is seen by its checksums") {
  const std::string log = sample_log();
  for (std::size_t i = 0; i < log.size(); ++i) {
    std::string damaged = log;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    CHECK_THROWS(read_events(damaged));
  }
}

TEST_CASE("the real TensorBoard read from these bytes what was put into them") {
  const auto read = nlohmann::json::parse(read_file(Path(SAMBA_SOURCE_DIR) / "test/tensorboard/read.json"));
  CHECK(read["sha256"] == sha256_hex(sample_log()));
  CHECK(read["file_version"] == 2.0);
  // The start of the second session took back step 3 of the first.
  CHECK(read["scalars"]["loss/training"] == nlohmann::json({{1, 5.5}, {2, 2.75}, {3, 1.75}}));
  CHECK(read["scalars"]["learning_rate"] ==
        nlohmann::json({{1, static_cast<double>(1e-4F)}, {2, static_cast<double>(2e-4F)}}));
  CHECK(read["shown"] == read["scalars"]);
  CHECK(read["texts"]["samples/0"] == nlohmann::json({{3, "again"}}));
}

TEST_CASE("a new file comes behind those that are there, whatever their time is") {
  const TemporaryFolder folder;
  const EventFile first(folder / "logs");
  const EventFile second(folder / "logs");
  CHECK(first.path().filename() < second.path().filename());
  CHECK(read_events(read_file(second.path())).at(0).file_version == "brain.Event:2");
  std::ofstream(folder / "logs/events.out.tfevents.4000000000.elsewhere.1.v2") << "";
  const EventFile third(folder / "logs");
  CHECK(third.path().filename().string().starts_with("events.out.tfevents.4000000001."));
}

// SAMBA_EVENT_FILE=/tmp/log/events.out.tfevents.1 event_file_test "[.write]"
TEST_CASE("the log is written for scripts/record_tensorboard.py", "[.write]") {
  const char* path = std::getenv("SAMBA_EVENT_FILE");
  REQUIRE(path != nullptr);
  write_file_atomically(path, sample_log());
}

}  // namespace
}  // namespace samba
