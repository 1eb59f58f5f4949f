// Files that are not read or written as a whole: pipes and terminals, text by lines, files that grow. Errors are those
// of files.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/files.h"

namespace samba {

// The longest text that is taken from a pipe or a terminal: 1 GiB.
inline constexpr std::uint64_t kLongestStream = std::uint64_t{1} << 30;

// The content of whatever can be read to its end: "-" is the standard input; pipes, terminals and devices are taken
// too, up to `most_bytes` bytes.
std::string read_stream(const Path& path, std::uint64_t most_bytes = kLongestStream);

// The lines of a text without the '\n' at their ends.
std::vector<std::string> lines_of(std::string_view text);

// Writes behind the end of a file, which is made when it is not there. A failed call leaves a part of `text`.
void append_to_file(const Path& path, std::string_view text);
// Makes what was appended durable. A file that is not there has nothing to keep.
void sync_file(const Path& path);

// What the errno of a failed call is: value where a path is at fault, else resource.
ErrorKind kind_of_system_error(int error);

}  // namespace samba
