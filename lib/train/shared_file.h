// A framed checkpoint file (formats/framed_file.h) that several ranks write together: each puts the bytes that it has
// where they belong, the digests of the sections are made side by side, rank 0 makes the header and puts the file in
// its place. The bytes are those that one process writes.
//
// The file must be on a file system that all ranks share.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/files.h"
#include "samba/train/communicator.h"

namespace samba {

// Bytes of a section that this rank has.
struct SectionPart {
  std::uint64_t first = 0;  // in the section
  std::uint64_t bytes = 0;
  std::function<void(std::uint64_t first, void* to, std::size_t bytes)> read;  // `first`: in the part
};

struct FileSection {
  std::uint64_t bytes = 0;
  std::vector<SectionPart> parts;
};

// `header`: the header's text from the SHA-256 (hex) of each section; its length does not depend on them. Collective:
// all ranks bring the same sections, each its own parts, and get the SHA-256 of the file. Atomic and durable; on any
// failure all ranks throw (AgreedError) and the old file stays.
std::string write_shared_file(Communicator& ranks, const Path& path, std::string_view magic,
                              const std::function<std::string(const std::vector<std::string>& digests)>& header,
                              const std::vector<FileSection>& sections);

}  // namespace samba
