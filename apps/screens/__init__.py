"""One Streamlit page a file."""
