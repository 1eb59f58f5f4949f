// TensorBoard's event files (docs/formats/event_file.md): records with checksums, each an Event message in the wire
// format of protocol buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "samba/core/files.h"

namespace samba {

// The cyclic redundancy check of Castagnoli's polynomial (RFC 3720, B.4).
std::uint32_t crc32c(std::string_view bytes);
// As records carry it: turned by 15 bits, and a constant added.
std::uint32_t masked_crc32c(std::string_view bytes);

// length (8 bytes), its checksum (4), the content, its checksum (4); all little endian.
std::string event_record(std::string_view content);

struct SummaryValue {
  std::string tag;                        // "loss/training"
  std::variant<float, std::string> data;  // a scalar, or a text (Markdown)
};

// One Event message: what comes first says what it is.
struct Event {
  double wall_time = 0.0;  // seconds since 1970
  std::int64_t step = 0;
  std::string file_version;          // of the first event of a file: "brain.Event:2"
  std::vector<SummaryValue> values;  // a summary
  bool session_start = false;        // what older files have of this step and later ones no longer counts
};

// The message without a frame.
std::string encode_event(const Event& event);

// A new event file in `folder`, which is made; readers take the files of a folder in the order of their names, and the
// name of this one comes behind those that are there.
class EventFile {
 public:
  explicit EventFile(const Path& folder);
  const Path& path() const { return path_; }
  void add(const Event& event);

 private:
  Path path_;
};

}  // namespace samba
