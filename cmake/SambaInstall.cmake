# cmake --install: the executable, the static library, its headers as <samba/FLOOR/name.h>, and a package file, so that
# find_package(samba) gives the target samba::samba.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS samba_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS samba samba_flags EXPORT samba_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
foreach(floor IN LISTS SAMBA_FLOORS)
  install(DIRECTORY lib/${floor}/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/samba/${floor}" FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES backends/registry.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/samba/backends")

# The cases of `samba verify`, found from the executable as ../share/samba/suites.
install(DIRECTORY test/golden/ DESTINATION "${CMAKE_INSTALL_DATADIR}/samba/suites")

set(SAMBA_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/samba")
install(EXPORT samba_targets NAMESPACE samba:: DESTINATION "${SAMBA_PACKAGE_DIR}")
configure_package_config_file(cmake/samba-config.cmake.in "${CMAKE_BINARY_DIR}/samba-config.cmake"
                              INSTALL_DESTINATION "${SAMBA_PACKAGE_DIR}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/samba-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/samba-config.cmake" "${CMAKE_BINARY_DIR}/samba-config-version.cmake"
        DESTINATION "${SAMBA_PACKAGE_DIR}")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
