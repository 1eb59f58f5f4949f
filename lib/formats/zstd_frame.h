// One zstd frame that states its content size: what the files of samba hold of zstd (RFC 8878).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace samba {

// The same bytes on every machine for the same version of the library.
std::vector<std::byte> zstd_compress(std::span<const std::byte> content);

// Unpacks `frame` into `content`, which has the size the caller knows from elsewhere. Error(value) that says what is
// wrong: no frame, more or less than one, another content size, damage. Nothing is allocated by what the frame claims.
void zstd_decompress(std::span<const std::byte> frame, std::span<std::byte> content);

// The content of a frame whose size is not known from elsewhere. The same errors; a size that no frame of these bytes
// can have is refused before anything is allocated.
std::vector<std::byte> zstd_content(std::span<const std::byte> frame);

// The most content that `frame_bytes` of a frame can hold: each block has at least 4 bytes and gives at most 128 KiB.
constexpr std::uint64_t most_zstd_content(std::uint64_t frame_bytes) {
  constexpr std::uint64_t kMostPerByte = (std::uint64_t{128} << 10) / 4;
  return frame_bytes > UINT64_MAX / kMostPerByte ? UINT64_MAX : frame_bytes * kMostPerByte;
}

}  // namespace samba
