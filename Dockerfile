# The web app and the planner command. Build: docker build --tag llm-capacity-planner .
# Run: docker run --rm --publish 127.0.0.1:8501:8501 --read-only --tmpfs /tmp llm-capacity-planner

# The digest of 3.13.15-slim-bookworm, on which ten public builds of September 2026 and later agree (one of them:
# github.com/matbalez/science-ladder, tools/proof/build.py). Another image: --build-arg PYTHON=...
ARG PYTHON=python:3.13-slim-bookworm@sha256:ed86c82274b3c69b52fb5820f358f0bd7df0b603332063cb5c6e32bd220c3e6e

FROM ${PYTHON} AS build
WORKDIR /source
COPY requirements.txt pyproject.toml README.md LICENSE ./
COPY planner ./planner
COPY hardware_db ./hardware_db
COPY calibration ./calibration
RUN python -m venv /opt/planner \
    && /opt/planner/bin/python -m pip install --no-cache-dir --require-hashes --requirement requirements.txt \
    && /opt/planner/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/planner/bin/python -m pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/planner/bin/python -m pip check

FROM ${PYTHON}
ENV PATH=/opt/planner/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    STREAMLIT_BROWSER_GATHER_USAGE_STATS=false \
    STREAMLIT_SERVER_SHOW_EMAIL_PROMPT=false \
    STREAMLIT_SERVER_HEADLESS=true \
    STREAMLIT_SERVER_FILE_WATCHER_TYPE=none \
    STREAMLIT_SERVER_ADDRESS=0.0.0.0 \
    STREAMLIT_SERVER_PORT=8501
RUN useradd --system --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin planner
COPY --from=build /opt/planner /opt/planner
WORKDIR /app
COPY app.py ./
COPY .streamlit ./.streamlit
USER 10001
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]
CMD ["streamlit", "run", "app.py"]
