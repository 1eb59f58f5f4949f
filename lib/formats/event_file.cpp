#include "samba/formats/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/streams.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, the lowest power first
constexpr std::uint32_t kMask = 0xA282EAD8;
constexpr const char* kPrefix = "events.out.tfevents.";

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    table[byte] = value;
  }
  return table;
}

template <class Integer>
void append_little_endian(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
}

// A message of protocol buffers being written: fields by number, the kind of each in the low three bits of its key.
class Message {
 public:
  void variable(std::uint32_t field, std::uint64_t value) {
    variable(field << 3U);
    variable(value);
  }
  void bytes(std::uint32_t field, std::string_view content) {
    variable(field << 3U | 2U);
    variable(content.size());
    bytes_ += content;
  }
  void fixed(std::uint32_t field, double value) {
    variable(field << 3U | 1U);
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
  }
  void fixed(std::uint32_t field, float value) {
    variable(field << 3U | 5U);
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
  }
  const std::string& text() const { return bytes_; }

 private:
  void variable(std::uint64_t value) {
    for (; value > 0x7F; value >>= 7U) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// SummaryMetadata that names the plugin which shows a value.
std::string metadata_of(std::string_view plugin) {
  Message data;
  data.bytes(1, plugin);
  Message metadata;
  metadata.bytes(1, data.text());
  return metadata.text();
}

// TensorProto of one text, of no dimension: TensorBoard makes a table of every other.
std::string text_tensor(std::string_view text) {
  constexpr std::uint64_t kString = 7;
  Message tensor;
  tensor.variable(1, kString);
  tensor.bytes(2, "");
  tensor.bytes(8, text);
  return tensor.text();
}

std::string encode_value(const SummaryValue& value) {
  Message message;
  message.bytes(1, value.tag);
  if (const float* number = std::get_if<float>(&value.data)) {
    message.fixed(2, *number);
    message.bytes(9, metadata_of("scalars"));
  } else {
    message.bytes(8, text_tensor(std::get<std::string>(value.data)));
    message.bytes(9, metadata_of("text"));
  }
  return message.text();
}

// The time in the name of an event file, or 0.
std::uint64_t time_in_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return 0;
  const std::string rest = name.substr(std::strlen(kPrefix));
  std::uint64_t time = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), time);
  return time;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t value = 0xFFFFFFFFU;
  for (const char c : bytes) value = (value >> 8U) ^ kTable[(value ^ static_cast<unsigned char>(c)) & 0xFFU];
  return ~value;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + kMask; }

std::string event_record(std::string_view content) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(content.size()));
  append_little_endian(record, masked_crc32c(record));
  record += content;
  append_little_endian(record, masked_crc32c(content));
  return record;
}

std::string encode_event(const Event& event) {
  Message message;
  message.fixed(1, event.wall_time);
  if (event.step != 0) message.variable(2, static_cast<std::uint64_t>(event.step));
  if (!event.file_version.empty()) {
    message.bytes(3, event.file_version);
  } else if (event.session_start) {
    constexpr std::uint64_t kSessionStart = 1;
    Message session;
    session.variable(1, kSessionStart);
    message.bytes(7, session.text());
  } else {
    Message summary;
    for (const SummaryValue& value : event.values) summary.bytes(1, encode_value(value));
    message.bytes(5, summary.text());
  }
  return message.text();
}

EventFile::EventFile(const Path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_file_error("create the folder", folder, error.value());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto time = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  fs::directory_iterator place(folder, error);
  if (error) throw_file_error("read the folder", folder, error.value());
  for (const fs::directory_entry& entry : place) {
    time = std::max(time, time_in_name(entry.path().filename().string()) + 1);
  }
  char host[256] = "localhost";
  if (::gethostname(host, sizeof host - 1) != 0) std::snprintf(host, sizeof host, "localhost");
  char number[32];
  std::snprintf(number, sizeof number, "%010llu", static_cast<unsigned long long>(time));
  path_ = folder / (kPrefix + std::string(number) + "." + host + "." + std::to_string(::getpid()) + ".samba");
  Event first;
  first.wall_time = static_cast<double>(time);
  first.file_version = "brain.Event:2";
  add(first);
}

void EventFile::add(const Event& event) { append_to_file(path_, event_record(encode_event(event))); }

}  // namespace samba
