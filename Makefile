SHELL := /bin/sh
.DEFAULT_GOAL := help
# Ansible starts in half the time when its bytecode may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: tools
tools: ## build .venv from requirements/tools.txt (no-op while that is unchanged)
	@lab/bin/tools
