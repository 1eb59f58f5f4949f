// The memory of this process and of the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace samba {

// Bytes of memory that this process holds now, and the most it has held since it began or since the last
// reset_peak_resident(). 0 where the system does not tell.
std::uint64_t resident_bytes();
std::uint64_t peak_resident_bytes();
// Starts the peak anew from what is held now; false where the system does not let it.
bool reset_peak_resident();

// Bytes that were asked for and not given back since the program began, by whatever part of it. Where the C library
// does not tell, resident_bytes().
std::uint64_t heap_bytes();

// Bytes that this process can still take without another one's: what the system calls available, less where a control
// group or a limit of the process leaves less.
std::uint64_t available_memory();

// Error(resource) when fewer bytes are available: "MODEL needs 1024.0 MiB of memory, 512.0 MiB are available".
void require_memory(std::uint64_t bytes, const std::string& what);

// Asks for pages of 2 MiB for those that lie in the memory as a whole, so that no more becomes resident than is used: a
// product that streams a large weight walks through fewer of them, and filling them takes fewer faults. Where the
// system does not grant them, nothing changes.
void ask_for_large_pages(void* memory, std::size_t bytes);

std::string mebibytes(std::uint64_t bytes);  // "12.5 MiB"

}  // namespace samba
