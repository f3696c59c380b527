# Manual pages and completions of shells: written by the mtl that was just built, from what its
# commands declare. Nobody installs a build with sanitizers, and this is no test of theirs.
if(MTL_SANITIZE)
  return()
endif()
set(share ${CMAKE_BINARY_DIR}/share)
add_custom_command(OUTPUT ${share}/stamp
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${share}
  COMMAND mtl __share ${share}
  COMMAND ${CMAKE_COMMAND} -E touch ${share}/stamp
  DEPENDS mtl COMMENT "Writing manual pages and completions")
add_custom_target(manual ALL DEPENDS ${share}/stamp)
add_dependencies(installed manual)
install(DIRECTORY ${share}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT mtl)
foreach(folder bash-completion zsh fish)
  install(DIRECTORY ${share}/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT mtl)
endforeach()
