#include "samba/formats/zip_directory.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "samba/core/error.h"

namespace samba {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kEnd = 0x06054B50U;         // end of central directory, 22 bytes and a comment
constexpr std::uint32_t kEnd64Place = 0x07064B50U;  // 20 bytes in front of it
constexpr std::uint32_t kEnd64 = 0x06064B50U;
constexpr std::uint32_t kEntry = 0x02014B50U;  // 46 bytes, name, extra, comment
constexpr std::uint32_t kLocal = 0x04034B50U;  // 30 bytes, name, extra, data
constexpr std::size_t kLongestComment = 65535;

class ZipReader {
 public:
  ZipReader(Bytes bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  std::map<std::string, Bytes> read() {
    find_directory();
    std::uint64_t at = directory_;
    for (std::uint64_t i = 0; i < entries_; ++i) at = read_entry(at);
    check_apart();
    return std::move(data_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_corrupt("zip", source_ + ": " + what); }

  Bytes part(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) refuse("the zip file ends too early");
    return bytes_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size));
  }
  std::uint64_t number(std::uint64_t at, std::size_t width) const {
    const Bytes raw = part(at, width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = (value << 8) | std::to_integer<std::uint64_t>(raw[i]);
    return value;
  }
  std::uint32_t word(std::uint64_t at) const { return static_cast<std::uint32_t>(number(at, 4)); }

  void find_directory() {
    if (bytes_.size() < 22) refuse("too short for a zip file");
    std::uint64_t end = bytes_.size() - 22;
    const std::uint64_t first = end - std::min<std::uint64_t>(end, kLongestComment);
    while (word(end) != kEnd) {
      if (end == first) refuse("has no zip directory; PyTorch files of the form before version 1.6 are not read");
      --end;
    }
    if (number(end + 20, 2) != bytes_.size() - end - 22) refuse("the zip file does not end with its directory");
    entries_ = number(end + 10, 2);
    directory_ = number(end + 16, 4);
    const bool small = entries_ != 0xFFFFU && directory_ != 0xFFFFFFFFU;
    if (small || end < 20 || word(end - 20) != kEnd64Place) return;
    const std::uint64_t end64 = number(end - 20 + 8, 8);
    if (word(end64) != kEnd64) refuse("the zip64 directory is not where it should be");
    entries_ = number(end64 + 32, 8);
    directory_ = number(end64 + 48, 8);
  }

  // Replaces the sizes that are too large for their field by those of the zip64 extra.
  void read_extra(Bytes extra, std::uint64_t& raw, std::uint64_t& stored, std::uint64_t& local) const {
    const auto base = static_cast<std::uint64_t>(extra.data() - bytes_.data());
    std::uint64_t at = 0;
    while (at + 4 <= extra.size()) {
      const std::uint64_t kind = number(base + at, 2), size = number(base + at + 2, 2);
      if (size > extra.size() - at - 4) refuse("a zip entry has a damaged extra field");
      if (kind == 1) {
        std::uint64_t place = base + at + 4;
        const std::uint64_t end = place + size;
        for (std::uint64_t* field : {&raw, &stored, &local}) {
          if (*field != 0xFFFFFFFFU) continue;
          if (place + 8 > end) refuse("a zip entry has a damaged zip64 field");
          *field = number(place, 8);
          place += 8;
        }
      }
      at += 4 + size;
    }
  }

  std::uint64_t read_entry(std::uint64_t at) {
    if (word(at) != kEntry) refuse("the zip directory is damaged");
    const std::uint64_t flags = number(at + 8, 2), method = number(at + 10, 2);
    std::uint64_t stored = number(at + 20, 4), raw = number(at + 24, 4), local = number(at + 42, 4);
    const std::uint64_t name_size = number(at + 28, 2), extra_size = number(at + 30, 2),
                        comment_size = number(at + 32, 2);
    const Bytes name_bytes = part(at + 46, name_size);
    const std::string name(reinterpret_cast<const char*>(name_bytes.data()), name_bytes.size());
    read_extra(part(at + 46 + name_size, extra_size), raw, stored, local);
    if ((flags & 1U) != 0 || method != 0 || raw != stored) {
      refuse("the zip entry '" + name + "' is compressed or encrypted; torch.save stores entries as they are");
    }
    if (word(local) != kLocal) refuse("the zip entry '" + name + "' is not where the directory says");
    const std::uint64_t begin = local + 30 + number(local + 26, 2) + number(local + 28, 2);
    if (!data_.emplace(name, part(begin, stored)).second) refuse("the zip entry '" + name + "' occurs twice");
    return at + 46 + name_size + extra_size + comment_size;
  }

  void check_apart() const {
    std::vector<Bytes> ranges;
    for (const auto& [name, data] : data_) {
      if (!data.empty()) ranges.push_back(data);
    }
    std::sort(ranges.begin(), ranges.end(), [](const Bytes& a, const Bytes& b) { return a.data() < b.data(); });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i - 1].data() + ranges[i - 1].size() > ranges[i].data()) refuse("two zip entries overlap");
    }
  }

  Bytes bytes_;
  const std::string& source_;
  std::uint64_t entries_ = 0;
  std::uint64_t directory_ = 0;
  std::map<std::string, Bytes> data_;
};

}  // namespace

std::map<std::string, std::span<const std::byte>> read_zip_directory(std::span<const std::byte> bytes,
                                                                     const std::string& source) {
  return ZipReader(bytes, source).read();
}

}  // namespace samba
