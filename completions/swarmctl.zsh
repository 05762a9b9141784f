
#compdef swarmctl

_swarmctl_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SWARMCTL_COMPLETE=complete_zsh swarmctl)
}

compdef _swarmctl_completion swarmctl

