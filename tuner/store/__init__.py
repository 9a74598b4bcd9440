"""Storage of a study: trials in Optuna's storage, files in the study's folder."""
