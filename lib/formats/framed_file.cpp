#include "samba/formats/framed_file.h"

#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"

namespace samba {

nlohmann::json read_framed_header(FileReader& file, std::uint64_t longest, const FrameRefusal& refuse) {
  std::uint64_t length = 0;
  if (file.read(&length, sizeof length) != sizeof length) refuse("truncated", "it ends inside the header length");
  if (length < 1 || length > longest) {
    refuse("header_length",
           "a header of " + std::to_string(length) + " bytes, 1 to " + std::to_string(longest) + " are accepted");
  }
  if (file.size() < length) refuse("header_integrity", "it ends inside the header");
  std::string text(static_cast<std::size_t>(length), '\0');
  Sha256Digest digest{};
  if (file.read(text.data(), text.size()) != text.size() || file.read(digest.data(), digest.size()) != digest.size()) {
    refuse("header_integrity", "it ends inside the header");
  }
  Sha256 hash;
  hash.update(text);
  if (hash.finish() != digest) refuse("header_integrity", "the header's SHA-256 differs");
  try {
    return parse_json(text);
  } catch (const Error& error) {
    refuse("json", std::string("the header is ") + error.what());
  }
  return {};
}

FramedFileWriter::FramedFileWriter(const Path& path, std::string_view magic, const std::string& header,
                                   std::uint64_t data_bytes, const FileProgress& progress)
    : file_(path), total_(magic.size() + kFrameBytes + header.size() + data_bytes), progress_(progress) {
  const std::uint64_t length = header.size();
  Sha256 hash;
  hash.update(header);
  const Sha256Digest digest = hash.finish();
  put(magic.data(), magic.size());
  put(&length, sizeof length);
  put(header.data(), header.size());
  put(digest.data(), digest.size());
}

void FramedFileWriter::put(const void* data, std::size_t bytes) {
  file_.write(data, bytes);
  whole_.update(data, bytes);
  done_ += bytes;
  if (progress_) progress_(done_, total_);
}

std::string FramedFileWriter::commit() {
  file_.commit();
  return whole_.finish_hex();
}

}  // namespace samba
