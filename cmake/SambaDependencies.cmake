# Debian's packages; scripts/setup.sh installs them.
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(icu REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)  # \p{White_Space}
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(cairo REQUIRED cairo)  # its header; the library is loaded by samba plot alone

# Accelerators and MPI are looked for so that `samba --version` and the build log can say what this machine has.
if(SAMBA_CUDA)
  find_package(CUDAToolkit QUIET)
endif()
if(SAMBA_HIP)
  find_package(hip QUIET)
endif()
if(SAMBA_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
