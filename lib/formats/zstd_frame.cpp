#include "samba/formats/zstd_frame.h"

#include <zstd.h>

#include <memory>
#include <string>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr int kLevel = 3;

std::uint64_t stated_size(std::span<const std::byte> frame) {
  const unsigned long long stated = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (stated == ZSTD_CONTENTSIZE_UNKNOWN || stated == ZSTD_CONTENTSIZE_ERROR) {
    refuse_value("the zstd frame does not state its content size");
  }
  return stated;
}

}  // namespace

std::vector<std::byte> zstd_compress(std::span<const std::byte> content) {
  std::vector<std::byte> frame(ZSTD_compressBound(content.size()));
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), kLevel);
  if (ZSTD_isError(size) != 0) {
    throw Error(ErrorKind::resource, std::string("zstd cannot compress: ") + ZSTD_getErrorName(size));
  }
  frame.resize(size);
  return frame;
}

void zstd_decompress(std::span<const std::byte> frame, std::span<std::byte> content) {
  const std::size_t frame_size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_size) != 0) {
    refuse_value(std::string("the zstd frame is damaged: ") + ZSTD_getErrorName(frame_size));
  }
  if (frame_size != frame.size()) {
    refuse_value("the zstd frame ends after " + std::to_string(frame_size) + " of " + std::to_string(frame.size()) +
                 " bytes");
  }
  const std::uint64_t stated = stated_size(frame);
  if (stated != content.size()) {
    refuse_value("the zstd frame holds " + std::to_string(stated) + " bytes, the shape needs " +
                 std::to_string(content.size()));
  }
  const std::size_t size = ZSTD_decompress(content.data(), content.size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0) {
    refuse_value(std::string("the zstd frame is damaged: ") + ZSTD_getErrorName(size));
  }
  if (size != content.size()) {
    refuse_value("the zstd frame unpacks to " + std::to_string(size) + " bytes, the shape needs " +
                 std::to_string(content.size()));
  }
}

std::vector<std::byte> zstd_content(std::span<const std::byte> frame) {
  const std::uint64_t size = stated_size(frame);
  if (size > most_zstd_content(frame.size())) {
    refuse_value("the zstd frame of " + std::to_string(frame.size()) + " bytes states " + std::to_string(size) +
                 " bytes of content, more than it can hold");
  }
  std::vector<std::byte> content(size);
  zstd_decompress(frame, content);
  return content;
}

}  // namespace samba
